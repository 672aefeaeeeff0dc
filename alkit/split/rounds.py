"""A round: who does what in it, and what came out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from alkit.schedule.timeline import Interval

SCORES = ("weights", "losses", "right", "scores", "seconds")  # of a record, in files


class Assignment(NamedTuple):
    """What a device does in a round.

    Attributes:
        cut, micro: units on the device, and micro-batches per iteration.
        steps: of the device's stream.
        fresh: both optimisers begin anew, for one side does not know its own any more.
    """

    cut: int
    micro: int
    steps: range
    fresh: bool


class Attendance(dict[int, Assignment]):
    """What each device that took part in a round did."""


@dataclass
class Contribution:
    """What a device and its tail made of a round; sizes and losses are by step."""

    state: dict[str, Tensor]
    sizes: list[int]
    right: int
    losses: list[float]
    intervals: list[Interval] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """Of all its steps."""
        return sum(self.sizes)


@dataclass
class RoundRecord:
    """What a round gave.

    Attributes:
        attendance: who took part, and how.
        weights: samples by which each was weighted.
        losses: by device, of its steps.
        sizes: by device, samples of its steps.
        right: by device, samples classified correctly while training.
        scores: of the averaged network, by name, if it was looked at.
        seconds: from the first device's start to the average.
        averaging_s: of them, for the average itself.
    """

    attendance: Attendance
    weights: dict[int, int]
    losses: dict[int, list[float]]
    right: dict[int, int]
    scores: dict[str, float]
    seconds: float
    intervals: list[Interval] = field(default_factory=list)
    averaging_s: float = 0.0
    sizes: dict[int, list[int]] = field(default_factory=dict)

    def mean_loss(self, *devices: int) -> float:
        """Return the mean over samples, of all devices or of some; not a number without any."""
        losses = [loss for at in devices or self.losses for loss in self.losses[at]]
        sizes = [size for at in devices or self.losses for size in self._sizes(at)]
        weighted = sum(loss * size for loss, size in zip(losses, sizes, strict=True))
        return weighted / sum(sizes) if losses else math.nan

    def show(self, bar: Any) -> None:
        """Move a bar of tqdm's on by this round."""
        shown = {"loss": f"{self.mean_loss():.3f}"} if any(self.losses.values()) else {}
        shown |= {name: f"{own:.3f}" for name, own in self.scores.items()}
        bar.set_postfix(shown, refresh=False)
        bar.update(1)

    @property
    def accuracy(self) -> float | None:
        """Of the averaged network, from 0 to 1, if it was looked at."""
        return self.scores.get("accuracy")

    def plain(self) -> dict[str, Any]:
        """Return it without its intervals, as a checkpoint can hold it."""
        orders = [
            [at, own.cut, own.micro, own.steps.start, own.steps.stop, own.fresh]
            for at, own in self.attendance.items()
        ]
        return {
            "orders": orders,
            "sizes": self.sizes,
            **{name: getattr(self, name) for name in SCORES},
        }

    @staticmethod
    def read(plain: Mapping[str, Any]) -> "RoundRecord":
        """Return what `plain` gave."""
        attendance = Attendance()
        for at, cut, micro, first, last, fresh in plain["orders"]:
            attendance[at] = Assignment(cut, micro, range(first, last), fresh)
        found = RoundRecord(attendance, *(plain[name] for name in SCORES))
        found.sizes = plain.get("sizes", {})
        return found

    def _sizes(self, at: int) -> list[int]:
        return self.sizes.get(at) or [1] * len(self.losses[at])  # an older record has none
