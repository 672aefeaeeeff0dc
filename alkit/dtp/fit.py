"""Target propagation behind `alkit.fit`."""

from alkit.data.parts import DataSet, Part
from alkit.dtp.convert import from_blocks
from alkit.dtp.networks import Net
from alkit.dtp.train import train
from alkit.engine.asked import Asked
from alkit.engine.record import Record

__all__ = ["fit"]

# what its own settings call these options
NAMES = {name: name for name in ("epochs", "schedule", "augment", "seed", "threads")}
NAMES |= {"batch_size": "batch", "clip": "clip"}
REFUSED: tuple[str, ...] = (
    "optimizer",
    "loss",
    "executor",
    "workers",
    "cuts",
    "micro",
    "exits",
    "tensorboard",
    "accumulate",
    "compile",
)
REFUSED += ("end_factor", "drop_last", "patience", "evaluate_train", "stop_at_divergence")


def fit(asked: Asked) -> Record:
    """Run what was asked: a `Net` of `alkit.dtp.network`, or blocks, for which feedback is made.

    Settings are those of `alkit.dtp.Settings`. The weights are those of the last epoch.
    """
    asked.refuse(*REFUSED, why="see alkit.dtp.Settings for its own")
    asked.refuse("precision", why="feedback's gradients are float32, narrower ones are untried")
    net = asked.model
    if not isinstance(net, Net):
        net = from_blocks(net, seed=asked.plan.seed)
    changes = asked.given_options(**NAMES) | dict(asked.changes)
    if asked.one_lr is not None:
        changes["lr"] = asked.one_lr
    own = train(
        net,
        _data_set(asked),
        asked.method,
        device=asked.device,
        ranks=asked.ranks,
        checkpoint=asked.checkpoint,
        progress=asked.progress,
        settings=asked.settings,
        **changes,
    )
    return Record.of_steps(net, own, changes, best_epoch=len(own.history))


def _data_set(asked: Asked) -> DataSet:
    data = asked.data
    parts = [each for each in (data.train, data.validation, data.test) if isinstance(each, Part)]
    if len(parts) < 3:
        raise TypeError(
            f"{asked.method} takes a DataSet, or a Part or tensors (x, y) each for train,"
            " validation and test"
        )
    train, validation, test = parts
    classes = train.num_classes
    names = tuple(map(str, range(classes)))
    return DataSet(data.name, train, validation, test, classes, names)
