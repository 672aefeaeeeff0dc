"""Settings of a run of difference target propagation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from alkit.base.arguments import check_whole
from alkit.engine.optimizers import Factory

# what the feedback learns, and how targets come down
METHODS = {
    "dtp": ("l_drl", "difference"),
    "vanilla_dtp": ("reconstruction", "difference"),
    "tp": ("reconstruction", "plain"),
}
ALLOWED = {"form": ("closed", "autograd"), "index": ("own", "frozen")}
LR = 0.05
SGD: Factory = partial(torch.optim.SGD, momentum=0.9, weight_decay=1e-4)

Each = float | Sequence[float]


@dataclass(frozen=True)
class Settings:
    """Settings of a run; all ranks have the same.

    `iterations`, `sigma` and `feedback_lr` are one number for all trained feedbacks, or one each,
    from input to output, without block 0.

    Attributes:
        beta: how far the first target goes against the loss gradient; gradients are beta times
            those of backprop, so beta x lr is the rate to compare backprop at.
        iterations: of each feedback, for each batch; 0: it stays as it is.
        sigma: standard deviation of the noise.
        feedback_lr: of the optimiser of each feedback, which goes on from batch to batch.
        feedback_optimizer: makes it, as `optimizer=` does those of the forward weights.
        samples: of noise an iteration; the batch is repeated so often.
        form: of feedback gradients: "closed" where the feedback of a block has one weight, or
            "autograd", see `alkit.dtp.learning`.
        index: places for unpooling in the loss: "own" of the noisy pass, as published, or "frozen".
    """

    beta: float = 0.7
    iterations: Each = 20
    sigma: Each = 0.2
    feedback_lr: Each = 1e-3
    feedback_optimizer: Factory = partial(torch.optim.SGD, momentum=0.9)
    samples: int = 1
    form: str = "closed"
    index: str = "own"

    def __post_init__(self) -> None:
        for name, allowed in ALLOWED.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}: give {', '.join(allowed)}")
        check_whole(samples=self.samples)


def aligned(name: str, value: Each, loops: Mapping[int, str]) -> dict[int, float]:
    """Give each trained feedback its number.

    Args:
        loops: labels of the feedbacks.
    Raises:
        ValueError: as many numbers as feedbacks are wanted, or one for all; none negative.
    """
    found = list(value) if isinstance(value, Sequence) else [value] * len(loops)
    if len(found) != len(loops):
        raise ValueError(
            f"{name} has {len(found)} numbers and there are {len(loops)} trained feedbacks"
            f" ({', '.join(loops.values())}): give one number for all, or {len(loops)}"
        )
    if any(each < 0 or (name == "iterations" and each != int(each)) for each in found):
        raise ValueError(f"{name} is {found}: none may be negative, iterations are whole")
    return dict(zip(loops, found, strict=True))
