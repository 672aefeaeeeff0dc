"""Messages between a device and the server over torch.distributed, and their times.

Times are the time of day of a machine, so lanes of several fit as well as their clocks agree.
"""

import time
from typing import Any

from alkit.engine.messages import PLACES, Message, Receiver, Sender
from alkit.schedule.timeline import Interval

TOLD = PLACES - 1  # the place of messages that belong to no task
ROOM = 256  # messages on their way
DAY_S = time.time() - time.perf_counter()  # between the two clocks


def now_s() -> float:
    """Return the time of day, from a clock that nobody sets."""
    return time.perf_counter() + DAY_S


class Channel:
    """Messages to and from another rank, in order; `seen` are the transfers to this side.

    One began when its sender handed it over, or when the one before had come, because a link
    carries one after the other; it ends when it is taken.
    """

    def __init__(self, peer: int) -> None:
        self.sender, self.receiver = Sender(peer, lag=1, room=ROOM), Receiver(peer, lag=1)
        self.serves = peer > 0  # this side is the server
        self.lane, self.stage = ("uplink", 0) if self.serves else ("downlink", 1)  # what comes here
        self.seen = list[Interval]()
        self.free_s = 0.0
        self.first = 0  # number of the first batch of a run, among all that have crossed

    def send(self, place: int, batch: int, payload: Any) -> None:
        """Begin to send the output of a task of a batch."""
        self.sender.send(place, batch, round(now_s() * 1e9), payload)

    def take(self) -> Message:
        """Wait for the first message that this side has asked for."""
        message = self.receiver.take(*next(iter(self.receiver.asked)))
        end_s = now_s()
        began_s = min(end_s, max(self.free_s, message.mark / 1e9))
        self.free_s = end_s
        told = message.place == TOLD
        kind, batch = ("weights", 0) if told else ("send", message.batch - self.first)
        micro, times = 0 if told else message.place, (began_s, end_s)
        self.seen.append(Interval(self.lane, kind, self.stage, batch, micro, *times, message.size))
        return message

    def arrived(self) -> list[Interval]:
        """Return the transfers since the last call."""
        found, self.seen = self.seen, []
        return found

    def tell(self, payload: Any) -> None:
        """Begin to send a payload that belongs to no task."""
        self.send(TOLD, 0, payload)

    def hear(self) -> Any:
        """Wait for a payload that the other side sends by `tell`."""
        self.receiver.ask(TOLD, 0)
        return self.take().payload
