"""A round: who does what in it, who has done it, how long the others wait, and what came out."""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from alkit.schedule.timeline import Interval
from alkit.split.settings import Settings
from alkit.split.turns import Turns, Turnstile

__all__ = ["Assignment", "Attendance", "Contribution", "Round", "RoundRecord"]

SCORES = ("weights", "losses", "right", "scores", "seconds")  # of a record, in files


class Assignment(NamedTuple):
    """What a device does in a round.

    Attributes:
        cut, micro: units on the device, and micro-batches an iteration.
        steps: of the device's stream.
        fresh: both optimisers begin anew, for one side does not know its own any more.
    """

    cut: int
    micro: int
    steps: range
    fresh: bool


class Attendance(dict[int, Assignment]):
    """What each device that took part in a round did; a list of them is a run's plan."""


@dataclass
class Contribution:
    """What a device and its tail made of a round."""

    state: dict[str, Tensor]
    samples: int
    right: int
    losses: list[float]
    intervals: list[Interval] = field(default_factory=list)


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
            [at, own.cut, own.micro, own.steps.start, own.steps.stop, own.fresh]
            for at, own in self.attendance.items()
        ]
        return {"orders": orders, **{name: getattr(self, name) for name in SCORES}}

    @staticmethod
    def read(plain: Mapping[str, Any]) -> "RoundRecord":
        """Return what `plain` gave."""
        attendance = Attendance()
        for at, cut, micro, first, last, fresh in plain["orders"]:
            attendance[at] = Assignment(cut, micro, range(first, last), fresh)
        return RoundRecord(attendance, *(plain[name] for name in SCORES))


class Round:
    """The open round; all of it belongs to whoever holds the server's lock.

    Args:
        number: from 0.
        assignments: of those who are waited for, to begin with.
        turnstile: of a tail that devices take turns at, step by step.

    Attributes:
        contributions: of those who are done.
        needed: contributions without which it is not averaged.
        opened_s, started_s: when it was opened, and when its first device began; 0 before.
    """

    def __init__(
        self,
        number: int,
        settings: Settings,
        assignments: Attendance,
        turnstile: Turnstile | None = None,
    ) -> None:
        self.number, self.settings, self.assignments = number, settings, assignments
        self.turnstile = turnstile
        self.contributions: dict[int, Contribution] = {}
        self.needed = min(settings.quorum, len(assignments))
        self.opened_s, self.started_s = time.monotonic(), 0.0

    @property
    def missing(self) -> list[int]:
        """Devices that are not done."""
        return [at for at in self.assignments if at not in self.contributions]

    @property
    def enough(self) -> bool:
        """Whether the quorum is there."""
        return len(self.contributions) >= self.needed

    def awaits(self, device: int) -> bool:
        """Whether a device has something to do now."""
        if device not in self.missing:
            return False
        first = min(self.missing)  # who comes before the others gets the tail before them
        return device == first or self.settings.rules.tail != "handed on"

    def turns(self, device: int) -> Turns:
        """Return what lets a device at its tail, step by step."""
        return nullcontext if self.turnstile is None else self.turnstile.of(device)

    def slow(self) -> list[int]:
        """Return whom a round that takes too long goes on without: nobody before its quorum."""
        if self.turnstile is not None:
            return [] if self.turnstile.now is None else [self.turnstile.now]
        if self.settings.rules.tail == "handed on":
            return self.missing[:1]
        return self.missing if self.enough else []

    def deadline(self, lost_s: Mapping[int, float | None]) -> float:
        """Return when waiting for devices ends of which none is connected.

        Args:
            lost_s: when each was lost; None for one that never came.
        """
        missing = [lost_s[at] for at in self.missing]
        seen = [at for at in missing if at is not None]
        if not missing:
            return self.opened_s  # they can't come back into this round
        if len(seen) < len(missing) or not self.enough:
            return max([self.opened_s, *seen]) + self.settings.join_s
        return max(seen) + self.settings.grace_s

    def leave_out(self, devices: Sequence[int]) -> None:
        """Wait for these no more."""
        for device in devices:
            self.assignments.pop(device, None)
            if self.turnstile is not None:
                self.turnstile.leave(device)

    def record(self, scores: dict[str, float], averaging_s: float, end_s: float) -> RoundRecord:
        """Return what came out; the devices in their order."""
        done = dict(sorted(self.contributions.items()))
        return RoundRecord(
            attendance=Attendance({at: self.assignments[at] for at in done}),
            weights={at: own.samples for at, own in done.items()},
            losses={at: own.losses for at, own in done.items()},
            right={at: own.right for at, own in done.items()},
            scores=scores,
            seconds=end_s - (self.started_s or end_s),
            intervals=[interval for own in done.values() for interval in own.intervals],
            averaging_s=averaging_s,
        )
