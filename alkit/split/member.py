"""What the server knows of one device, whether it is connected or not."""

from dataclasses import dataclass, field

from alkit.split.channel import Channel
from alkit.split.greeting import Greeting
from alkit.split.halves import Saved, Tail, kept
from alkit.split.log import LaneLog
from alkit.split.round import Assignment
from alkit.split.settings import Settings
from alkit.split.tail_round import TailRound

__all__ = ["Member"]


@dataclass
class Member:
    """A device as the server knows it.

    Attributes:
        index, samples: its number, and how many samples it has.
        choice: cut and micro-batches of its next round.
        planned: the planner has made the choice, which stays after a restart.
        channel: of its connection, while there is one.
        offset_s: server's clock minus the device's.
        lost_s: when its last connection ended; None if it never came.
        dropped: why nobody waits for it, until it comes again; "" if somebody does.
        live: round and step of the head that it brought along; told once.
        known, saved: optimisers, by round and cut, that the device has, and the tail's.
        work: its newest round.
        log: of its lanes.
    """

    index: int
    samples: int
    choice: tuple[int, int]
    planned: bool = False
    channel: Channel | None = None
    offset_s: float = 0.0
    lost_s: float | None = None
    dropped: str = ""
    live: tuple[int, int] = (-1, -1)
    known: set[tuple[int, int]] = field(default_factory=set)
    saved: Saved = field(default_factory=dict)
    work: TailRound | None = None
    log: LaneLog = field(default_factory=LaneLog)

    def met(self, greeting: Greeting, channel: Channel) -> None:
        """It has come, and says where it is."""
        self.channel, self.dropped = channel, ""
        self.known, self.live = set(greeting.saved), (greeting.round, greeting.step)
        self.offset_s = greeting.offset_s

    def keep(self, key: tuple[int, int], tail: Tail) -> None:
        """Keep the tail's optimiser as of a round's beginning."""
        self.saved = kept(self.saved, key, tail)

    def resumes(self, number: int) -> bool:
        """Bring the tail to where the device is in a round, if both can go on from there."""
        live, self.live = self.live, (-1, -1)
        if self.work is None or live[0] != number or not self.work.can_resume(*live):
            return False
        self.work.resume(live[1])
        return True

    def optimizers_known(
        self, before: Assignment | None, number: int, cut: int, settings: Settings
    ) -> bool:
        """Whether both sides have the optimisers with which the round before this one ended.

        Args:
            before: what the device did in that round; None if it was averaged without it, and what
                a side may have belongs to no average.
        """
        if before is None or before.cut != cut:
            return False
        return (number, cut) in self.known and (
            settings.rules.shared or (number, cut) in self.saved
        )
