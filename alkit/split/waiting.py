"""How long a round waits for its devices, and for whom it waits no more.

at work      for `round_s`, or ten times what the others took, once there are enough of these
lost         `grace_s` from its first loss in the round; `join_s` until there are enough
             at one tail for all, if it is its turn; else once nobody is at work
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import median

from alkit.split.member import Member
from alkit.split.rounds import Contribution
from alkit.split.settings import Settings
from alkit.split.turns import Turns

log = logging.getLogger(__name__)

LOOK_S = 0.05  # between looks at who is late
LEAST_S, SLOWER = 60.0, 10.0  # a device may take so long, and so many times the others' median
SAID_S = 30.0  # before it is said who is waited for

Task = asyncio.Task[Contribution]


class QuorumLost(ConnectionError):
    """Too few devices are left."""


class LeftOut(Exception):
    """A device can't go on in this round."""


class Watch:
    """Waits for the devices of one round.

    Args:
        leave_out: ends a device's part in the round: its number, its task, why, and for how many
            seconds nobody else was at work.
    """

    def __init__(
        self,
        number: int,
        settings: Settings,
        members: Sequence[Member],
        turns: Turns | None,
        leave_out: Callable[[int, Task, str, float], Awaitable[None]],
    ) -> None:
        self.number, self.settings, self.members = number, settings, members
        self.turns, self.leave_out = turns, leave_out
        self.took: list[float] = []  # of those who are done
        self.opened_s = self.ended_s = time.monotonic()
        self.said = False

    async def wait(self, tasks: Mapping[int, Task]) -> None:
        """Wait until everybody is done, or the rest has been waited for long enough.

        Raises:
            QuorumLost: see `Settings.join_s`.
        """
        quorum = min(self.settings.quorum, len(tasks))
        while left := {at: task for at, task in tasks.items() if not task.done()}:
            await asyncio.wait(left.values(), timeout=LOOK_S, return_when="FIRST_COMPLETED")
            for task in tasks.values():
                _raise_fault(task)
            self._note(sum(map(is_done, tasks.values())))
            left = {at: task for at, task in left.items() if not task.done()}
            for at, why in self._late(left, enough=len(self.took) >= quorum).items():
                await self.leave_out(at, left[at], why, time.monotonic() - self.ended_s)
        if (done := sum(map(is_done, tasks.values()))) < quorum:
            why = "".join(f"; device {m.index}: {m.dropped}" for m in self.members if m.dropped)
            raise QuorumLost(
                f"round {self.number}: {done} devices are done and the others are gone; the quorum"
                f" is {self.settings.quorum}{why}"
            )

    def _note(self, done: int) -> None:
        """Note how long those who are done took."""
        now = time.monotonic()
        if len(self.took) < done:
            self.took += [now - self.opened_s] * (done - len(self.took))
            self.ended_s = now

    def _late(self, left: Mapping[int, Task], *, enough: bool) -> dict[int, str]:
        """Return whom nobody waits for any more, and why."""
        now = time.monotonic()
        waited_s = now - (self.opened_s if self.turns is None else self.turns.since_s)
        if not left:
            return {}
        if (enough or self.turns is not None) and waited_s >= self._limit_s():
            slow = left if self.turns is None else [at for _, at in self.turns.left[:1]]
            of = "round_s" if self.settings.round_s else "ten times as long as the others"
            why = f"it was not done after {waited_s:.3g} s ({of})"
            return dict.fromkeys((at for at in slow if at in left), why)
        if waited_s >= SAID_S and self.took and not self.said:
            log.info("round %d waits for device %s", self.number, ", ".join(map(str, left)))
            self.said = True
        if refused := [at for at in left if self.members[at].refused_in == self.number]:
            return {at: self.members[at].dropped for at in refused}
        awaited = self._awaited(left)
        at_work = any(self.members[at].link is not None for at in awaited)
        if at_work or now < self._deadline(awaited, enough=enough):
            return {}
        return {at: self.members[at].dropped or "it is gone" for at in awaited}

    def _awaited(self, left: Mapping[int, Task]) -> list[int]:
        """Return whom all wait for: whose turn it is, if it is not there; else everybody."""
        turns = [] if self.turns is None else self.turns.left
        absent = [at for _, at in turns[:1] if at in left and self.members[at].link is None]
        return absent or list(left)

    def _limit_s(self) -> float:
        """Return what a round, or a turn, may take: as said, or ten times what others took."""
        if self.settings.round_s:
            return self.settings.round_s
        took = self.took if self.turns is None else self.turns.took
        return max(LEAST_S, SLOWER * median(took)) if took else math.inf

    def _deadline(self, left: Sequence[int], *, enough: bool) -> float:
        """Return when waiting for devices ends of which none is connected."""
        lost = [self.members[at].lost_s for at in left]
        seen = [at for at in lost if at is not None]
        if len(seen) < len(lost) or not enough:
            return max([self.opened_s, *seen]) + self.settings.join_s
        return max(seen) + self.settings.grace_s


def is_done(task: Task) -> bool:
    """Whether a device has handed in what is due."""
    return task.done() and not task.cancelled() and task.exception() is None


def _raise_fault(task: Task) -> None:
    """Raise a fault of ours; that a device is left out is none."""
    if task.done() and not task.cancelled():
        error = task.exception()
        if error is not None and not isinstance(error, LeftOut):
            raise error
