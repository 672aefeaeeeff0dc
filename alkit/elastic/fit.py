"""Elastic freeze training behind `alkit.fit`."""

from dataclasses import replace

from torch import nn

from alkit.data.given import in_memory
from alkit.data.parts import Part
from alkit.elastic.examples import Examples
from alkit.elastic.network import Network
from alkit.elastic.optim import Recipe
from alkit.elastic.settings import Settings
from alkit.elastic.train import train
from alkit.engine.asked import Asked
from alkit.engine.record import Record
from alkit.engine.reduction import check_reduction, says_reduction

__all__ = ["fit", "model_of"]

NAMES = {name: name for name in ("epochs", "seed", "threads", "micro", "executor")}
NAMES |= {"batch_size": "batch", "workers": "devices"}
NAMES |= {"precision": "precision", "drop_last": "drop_last"}
REFUSED: tuple[str, ...] = (
    "cuts",
    "exits",
    "tensorboard",
    "schedule",
    "end_factor",
    "augment",
    "accumulate",
    "compile",
)
REFUSED += ("patience", "evaluate_train", "stop_at_divergence", "resume")


def model_of(asked: Asked) -> Network:
    """Return the network itself, or what is made of blocks."""
    if isinstance(asked.model, Network):
        asked.refuse("loss", why="the network has its own")
        return asked.model
    loss = asked.loss or nn.functional.cross_entropy
    return Network.from_blocks(asked.model, loss, seed=asked.plan.seed)


def fit(asked: Asked) -> Record:
    """Run what was asked: a `Network`, or blocks, of which one is made, with cross-entropy or loss.

    Settings are those of `alkit.elastic.Settings`; `lr` is its recipe's. Nothing is frozen unless
    `freeze=` asks for it ("schedule", "gradnorm", ...). The weights are those of the last epoch.
    """
    network = model_of(asked)
    asked.refuse(*REFUSED, why="see alkit.elastic.Settings and its recipe for its own")
    if asked.on_ranks:
        asked.refuse("workers", why="with ranks, a rank is a device")
    changes = asked.given_options(**NAMES) | dict(asked.changes)
    if asked.settings is None:
        changes.setdefault("freeze", "none")  # an untrained layer frozen early never learns
    if asked.on_ranks:
        changes.setdefault("devices", asked.crew)
    if asked.loss is not None and not says_reduction(asked.loss):
        if max(changes.get("devices", 1), changes.get("micro", 0)) > 1:
            check_reduction(asked.loss)
        changes["micro"] = 1  # uncut, it may be a mean or a sum
    given = {"lr": asked.one_lr, "clip": asked.plan.clip}
    recipe = changes.get("recipe", (asked.settings or Settings()).recipe)
    if asked.optimizer is not None:
        if "recipe" not in changes and asked.settings is None:  # a rate that stays, and no limit
            recipe = Recipe(warmup=0.0, shape="constant", clip=None)
        recipe = replace(recipe, optimizer=asked.optimizer)
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
    x, y = in_memory(part)
    if isinstance(part, Part) and part.is_text:
        x = x, x != part.pad
    return Examples(x, y)
