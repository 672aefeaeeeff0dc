"""What a round of a run was: who took part, what came out; and the plan that a list of them is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from alkit.split.replica import Order
from alkit.timeline import Interval

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
        right: samples classified correctly while training.
        accuracy: of the averaged network, if it was looked at.
        seconds: from the first device's start to the average.
    """

    attendance: Attendance
    weights: dict[int, int]
    losses: dict[int, list[float]]
    right: int
    accuracy: float | None
    seconds: float
    intervals: list[Interval] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """Return it without its intervals, as a checkpoint can hold it."""
        orders = [
            [at, order.cut, order.micro, order.steps.start, order.steps.stop, order.fresh]
            for at, order in self.attendance.items()
        ]
        values = ("weights", "losses", "right", "accuracy", "seconds")
        return {"orders": orders, **{name: getattr(self, name) for name in values}}

    @staticmethod
    def read(plain: Mapping[str, Any]) -> "RoundRecord":
        """Return what `plain` gave."""
        orders = Attendance()
        for at, cut, micro, first, last, fresh in plain["orders"]:
            orders[at] = Order(cut, micro, range(first, last), fresh)
        values = ("weights", "losses", "right", "accuracy", "seconds")
        return RoundRecord(orders, *(plain[name] for name in values))
