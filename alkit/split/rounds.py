"""What a round of a run was: who took part, what came out; and the plan that a list of them is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from alkit.schedule.timeline import Interval
from alkit.split.replica import Order

__all__ = ["Attendance", "RoundRecord"]


class Attendance(dict[int, Order]):
    """What each device that took part in a round did; a list of them is a run's plan."""


@dataclass
class RoundRecord:
    """What a round gave.

    Attributes:
        attendance: who took part, and how.
        weights: samples by which each was weighted.
        losses: by device, of its steps.
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

    @property
    def accuracy(self) -> float | None:
        """Of the averaged network, from 0 to 1, if it was looked at."""
        return self.scores.get("accuracy")

    def plain(self) -> dict[str, Any]:
        """Return it without its intervals, as a checkpoint can hold it."""
        orders = [
            [at, order.cut, order.micro, order.steps.start, order.steps.stop, order.fresh]
            for at, order in self.attendance.items()
        ]
        values = ("weights", "losses", "right", "scores", "seconds")
        return {"orders": orders, **{name: getattr(self, name) for name in values}}

    @staticmethod
    def read(plain: Mapping[str, Any]) -> "RoundRecord":
        """Return what `plain` gave."""
        orders = Attendance()
        for at, cut, micro, first, last, fresh in plain["orders"]:
            orders[at] = Order(cut, micro, range(first, last), fresh)
        values = ("weights", "losses", "right", "scores", "seconds")
        return RoundRecord(orders, *(plain[name] for name in values))
