"""Elastic freeze training behind `alkit.fit`."""

from dataclasses import replace

from torch import nn

from alkit.data.given import Pairs
from alkit.data.parts import Part
from alkit.elastic.examples import Examples
from alkit.elastic.network import Network
from alkit.elastic.settings import Settings
from alkit.elastic.train import train
from alkit.engine.asked import Asked
from alkit.engine.record import Record

__all__ = ["fit", "model_of"]

NAMES = {name: name for name in ("epochs", "seed", "threads", "micro", "executor")}
NAMES |= {"batch_size": "batch", "workers": "devices", "precision": "precision"}
REFUSED: tuple[str, ...] = (
    "optimizer",
    "cuts",
    "exits",
    "tensorboard",
    "schedule",
    "end_factor",
    "augment",
    "accumulate",
    "compile",
)
REFUSED += ("drop_last", "patience", "evaluate_train", "stop_at_divergence")


def model_of(asked: Asked) -> Network:
    """Return the network itself, or what is made of blocks."""
    if isinstance(asked.model, Network):
        asked.refuse("loss", why="the network has its own")
        return asked.model
    loss = asked.loss or nn.functional.cross_entropy
    return Network.from_blocks(asked.model, loss, seed=asked.plan.seed)


def fit(asked: Asked) -> Record:
    """Run what was asked: a `Network`, or blocks, of which one is made, with cross-entropy or loss.

    Settings are those of `alkit.elastic.Settings`; `lr` is its recipe's. The weights are those of
    the last epoch.
    """
    network = model_of(asked)
    asked.refuse(*REFUSED, why="see alkit.elastic.Settings and its recipe for its own")
    if asked.on_ranks:
        asked.refuse("workers", why="with ranks, a rank is a device")
    changes = asked.given_options(**NAMES) | dict(asked.changes)
    if asked.on_ranks:
        changes.setdefault("devices", asked.crew)
    given = {"lr": asked.one_lr, "clip": asked.plan.clip}
    recipe = changes.get("recipe", (asked.settings or Settings()).recipe)
    changes["recipe"] = replace(recipe, **{n: v for n, v in given.items() if v is not None})
    data = asked.data
    own = train(
        network,
        _examples(data.train),
        device=asked.device,
        ranks=asked.ranks,
        validation=None if data.validation is None else _examples(data.validation),
        test=None if data.test is None else _examples(data.test),
        checkpoint=asked.checkpoint,
        progress=asked.progress,
        metrics=asked.metrics,
        settings=asked.settings,
        **changes,
    )
    epochs = int(own.history["epoch"].max()) + 1
    return Record.of_steps(network, own, changes, best_epoch=epochs)


def _examples(part: object) -> Examples:
    if isinstance(part, Part):
        x = part.floats().x
        return Examples((x, x != part.pad) if part.is_text else x, part.y)
    if isinstance(part, Pairs):
        return Examples(part.x, part.y)
    if isinstance(part, Examples):
        return part
    raise TypeError(
        "elastic training picks its samples itself, also from the middle of an epoch: give a"
        " DataSet, Parts or (x, y)"
    )
