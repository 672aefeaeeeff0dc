"""Target propagation behind `alkit.fit`."""

from torch.nn.functional import cross_entropy

from alkit.dtp.convert import from_blocks
from alkit.dtp.networks import Net
from alkit.dtp.train import train
from alkit.engine.asked import Asked
from alkit.engine.record import Record

__all__ = ["fit", "model_of"]

# what its own settings call these options
NAMES = {name: name for name in ("epochs", "schedule", "augment", "seed", "threads")}
NAMES |= {"batch_size": "batch", "clip": "clip"}
REFUSED: tuple[str, ...] = (
    "optimizer",
    "workers",
    "cuts",
    "micro",
    "exits",
    "tensorboard",
    "accumulate",
    "compile",
)
REFUSED += ("end_factor", "drop_last", "patience", "evaluate_train", "stop_at_divergence")


def model_of(asked: Asked) -> Net:
    """Return the network itself, or what is made of blocks."""
    if isinstance(asked.model, Net):
        asked.refuse("loss", why="the network has its own")
        return asked.model
    return from_blocks(asked.model, loss=asked.loss or cross_entropy, seed=asked.plan.seed)


def fit(asked: Asked) -> Record:
    """Run what was asked: a `Net` of `alkit.dtp.network`, or blocks, for which feedback is made.

    Settings are those of `alkit.dtp.Settings`. The weights are those of the last epoch.
    """
    asked.refuse(*REFUSED, why="see alkit.dtp.Settings for its own")
    asked.refuse("precision", why="feedback's gradients are float32, narrower ones are untried")
    net = model_of(asked)
    changes = asked.given_options(**NAMES) | dict(asked.changes)
    if asked.one_lr is not None:
        changes["lr"] = asked.one_lr
    own = train(
        net,
        asked.data,
        asked.method,
        device=asked.device,
        ranks=asked.ranks,
        group=asked.group,
        checkpoint=asked.checkpoint,
        progress=asked.progress,
        settings=asked.settings,
        metrics=asked.metrics,
        **changes,
    )
    return Record.of_steps(net, own, changes, best_epoch=len(own.history))
