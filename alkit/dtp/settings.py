"""What a run of difference target propagation is told."""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from alkit.dtp.losses import INDEX_MODES
from alkit.dtp.optimizers import OPTIMIZERS, SCHEDULES

# what the feedback learns, and how targets come down
METHODS = {
    "dtp": ("l_drl", "difference"),
    "vanilla_dtp": ("reconstruction", "difference"),
    "tp": ("reconstruction", "plain"),
}
FORMS = ("closed", "autograd")

Each = float | Sequence[float]


@dataclass(frozen=True)
class Settings:
    """Settings of a run; all ranks have the same.

    `iterations`, `sigma` and `feedback_lr` are one number for all trained feedbacks, or one each,
    from input to output, without block 0.

    Attributes:
        method: of `METHODS`.
        beta: how far the first target goes against the loss gradient; gradients are beta times
            backprop's, so beta x lr is the rate to compare backprop at.
        iterations: of each feedback, for each batch; 0: it stays as it is.
        sigma: standard deviation of the noise.
        samples: of noise an iteration; the batch is repeated so often.
        feedback_optimizer, feedback_lr, feedback_momentum: of each feedback's own optimiser, which
            goes on from batch to batch.
        form: of feedback gradients: "closed" where a block's feedback has one weight, see
            `alkit.dtp.closed_form`; or "autograd".
        index: places for unpooling in the loss: "own" of the noisy pass, as published, or "frozen".
        symmetric: begin with feedback weights that are copies of the forward's, and no biases.
        forward_optimizer, lr, momentum, weight_decay: of the forward weights.
        clip: largest norm of a block's forward gradients; None: no limit.
        schedule: of lr: "cosine" to 0 over all steps; "cosine_published", an epoch a step, to 1e-5
            at epoch 85 of 90 and up again; "step", x 0.1 each 30 epochs; "none".
        batch: samples; the last batch of an epoch may be smaller.
        seed: of the order of samples and of all noise.
        threads: operator threads of each process.
        owners: the rank of each loop; default the longest first, by iterations times weights.
        lenient: lists of the wrong length are cut, or their last number repeated, with a warning,
            as in the published code.
    """

    method: str = "dtp"
    epochs: int = 1
    batch: int = 128
    beta: float = 0.7
    iterations: Each = 20
    sigma: Each = 0.2
    feedback_lr: Each = 1e-3
    feedback_momentum: float = 0.9
    feedback_optimizer: str = "sgd"
    samples: int = 1
    form: str = "closed"
    index: str = "own"
    symmetric: bool = False
    forward_optimizer: str = "sgd"
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 1e-4
    clip: float | None = None
    schedule: str = "cosine"
    seed: int = 0
    threads: int = 1
    owners: Sequence[int] | None = None
    lenient: bool = False

    def __post_init__(self) -> None:
        allowed = {
            "method": METHODS,
            "form": FORMS,
            "index": INDEX_MODES,
            "schedule": SCHEDULES,
            "forward_optimizer": OPTIMIZERS,
            "feedback_optimizer": OPTIMIZERS,
        }
        for name, names in allowed.items():
            if getattr(self, name) not in names:
                raise ValueError(f"{name} is {getattr(self, name)!r}: give {', '.join(names)}")
        if self.lr < 0:
            raise ValueError(f"lr is {self.lr}: give at least 0")
        for name in ("epochs", "batch", "samples", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")

    def lists(self, names: Sequence[str]) -> "Lists":
        """Return the three lists for the trained feedbacks of these names.

        Raises:
            ValueError: a list of another length, a negative number.
        """
        found = [
            aligned(name, getattr(self, name), names, lenient=self.lenient)
            for name in ("iterations", "sigma", "feedback_lr")
        ]
        if any(value != int(value) for value in found[0]):
            raise ValueError(f"iterations is {found[0]}: give whole numbers")
        return Lists([int(value) for value in found[0]], found[1], found[2])

    def options(self) -> dict[str, Any]:
        """Return these as keywords of `alkit.fit`."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        return {"batch_size": own.pop("batch")} | own

    def plain(self) -> dict[str, Any]:
        """Return what a checkpoint compares: all that changes a number."""
        kept = {
            name: value for name, value in asdict(self).items() if name not in ("lenient", "owners")
        }
        return {n: list(v) if isinstance(v, tuple) else v for n, v in kept.items()}


@dataclass(frozen=True)
class Lists:
    """A number for each trained feedback, from input to output."""

    iterations: list[int]
    sigma: list[float]
    feedback_lr: list[float]


def aligned(name: str, value: Each, blocks: Sequence[str], *, lenient: bool = False) -> list[float]:
    """Give each trained feedback its number.

    Raises:
        ValueError: as many numbers as blocks are wanted, or one for all; a negative one.
    """
    count = len(blocks)
    found = list(value) if isinstance(value, Sequence) else [value] * count
    if len(found) != count:
        say = f"{name} has {len(found)} numbers and there are {count} trained feedbacks"
        if not lenient or not found:
            raise ValueError(f"{say} ({', '.join(blocks)}): give one number for all, or {count}")
        found = (found + found[-1:] * count)[:count]
        warnings.warn(f"{say}: it becomes {found}", stacklevel=3)
    if any(number < 0 for number in found):
        raise ValueError(f"{name} is {found}: none may be negative")
    return found
