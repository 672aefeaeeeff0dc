"""Channels between a device and the server: five methods, whatever carries the bytes.

    send(message)       hand over; waits while too many are on their way
    receive(timeout)    the next message, in order
    close()             end the stream, after what was sent
    stats()             bytes and messages, both ways
    beat()              show that this side is alive, see `beating`

`local_pair` is the twin that needs no network: the same bytes go through two queues.
"""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from alkit.split.wire import Message, WireError, decode, encode, stamped

__all__ = [
    "LIMIT",
    "PIECE",
    "Channel",
    "ChannelLost",
    "HandshakeFailed",
    "LocalChannel",
    "Numbers",
    "Stats",
    "beating",
    "local_pair",
]

LIMIT = 1 << 30  # bytes of a message that a channel takes before it knows the plan
CAPACITY = 256  # messages on their way
PIECE = 1 << 16  # bytes in which a network channel sends a message


class ChannelLost(ConnectionError):
    """The other side has gone, without saying so or with an error."""


class HandshakeFailed(ChannelLost):
    """The other side is there, and one does not believe the other: trying again does not help."""


@dataclass
class Stats:
    """What went through a channel, seen from one side."""

    sent_bytes: int = 0
    received_bytes: int = 0
    sent: int = 0
    received: int = 0


class Channel(Protocol):
    """One side of a stream of messages."""

    peer: str

    def send(self, message: Message) -> None:
        """Hand a message over, in order.

        Raises:
            ChannelLost: the other side has gone.
        """

    def receive(self, timeout: float | None = None) -> Message:
        """Wait for the next message.

        Raises:
            ChannelLost: the other side has gone, or nothing came within `timeout` seconds.
            WireError: it sent what is no message.
        """

    def close(self) -> None:
        """End the stream: what was sent arrives; who waits on this side gets `ChannelLost`."""

    def stats(self) -> Stats:
        """Return what went through so far."""

    def beat(self) -> None:
        """Send a heartbeat if nothing else waits to be sent; never waits."""


class Numbers:
    """Numbers a stream's messages, and sees that the other side's are in order.

    A message that is sent twice has a number of the past: it is refused.
    """

    def __init__(self) -> None:
        self.stats = Stats()
        self.limit = LIMIT
        self.lock = threading.Lock()  # messages are handed over in the order of their numbers

    def pack(self, message: Message) -> bytes:
        """Return the bytes of the next message."""
        frame = encode(replace(message, number=self.stats.sent))
        self.stats.sent += 1
        self.stats.sent_bytes += len(frame)
        return frame

    def beat(self, outbox: "queue.Queue[bytes | None]") -> None:
        """Put a heartbeat in an empty queue: what waits in one is a sign of life already."""
        if self.lock.acquire(blocking=False):
            try:
                if outbox.empty():
                    frame = self.pack(Message("heartbeat"))
                    outbox.put_nowait(stamped(frame, time.perf_counter()))
            finally:
                self.lock.release()

    def check(self, message: Message) -> Message:
        """Return the message if it is the next one.

        Raises:
            WireError: it has come before, or one before it is missing.
        """
        if message.number != self.stats.received:
            raise WireError(
                f"message {message.number} came where {self.stats.received} was due: repeated, or"
                " one was lost"
            )
        self.stats.received += 1
        self.stats.received_bytes += message.size
        return message


class LocalChannel:
    """One side of a pair in this process; the bytes are those that gRPC would carry."""

    def __init__(
        self, peer: str, outbox: "queue.Queue[bytes | None]", inbox: "queue.Queue[bytes | None]"
    ) -> None:
        self.peer = peer
        self.outbox, self.inbox = outbox, inbox
        self.numbers = Numbers()
        self.cut = threading.Event()  # shared by both sides: the link is gone
        self.ended = False

    def send(self, message: Message) -> None:
        """See `Channel`."""
        with self.numbers.lock:
            frame = stamped(self.numbers.pack(message), time.perf_counter())
            while True:
                if self.cut.is_set() or self.ended:
                    raise ChannelLost(f"the link to {self.peer} is cut")
                try:
                    return self.outbox.put(frame, timeout=0.1)
                except queue.Full:
                    continue

    def receive(self, timeout: float | None = None) -> Message:
        """See `Channel`."""
        end_s = None if timeout is None else time.monotonic() + timeout
        while True:
            if self.cut.is_set() or self.ended:
                raise ChannelLost(f"the link to {self.peer} is cut, or was closed here")
            try:
                frame = self.inbox.get(timeout=0.1)
                break
            except queue.Empty:
                if end_s is not None and time.monotonic() > end_s:
                    raise ChannelLost(f"nothing came from {self.peer} in {timeout} s") from None
        if frame is None:
            self.ended = True
            raise ChannelLost(f"{self.peer} has ended the stream")
        message = decode(frame, self.numbers.limit)
        # a queue takes no time: what a message waits in it is no transfer
        return self.numbers.check(
            replace(message, first_s=message.sent_s, arrived_s=message.sent_s)
        )

    def close(self) -> None:
        """See `Channel`."""
        if self.ended or self.cut.is_set():
            return
        self.ended = True
        try:
            self.outbox.put(None, timeout=1.0)
        except queue.Full:  # the other side does not read any more
            self.cut.set()

    def stats(self) -> Stats:
        """See `Channel`."""
        return self.numbers.stats

    def beat(self) -> None:
        """See `Channel`."""
        self.numbers.beat(self.outbox)


@contextmanager
def beating(channel: Channel, limit_s: float) -> Iterator[None]:
    """Send heartbeats while this block runs, five in the time after which a silent side is lost."""
    end = threading.Event()

    def beat() -> None:
        while not end.wait(limit_s / 5):
            channel.beat()

    thread = threading.Thread(target=beat, name="alkit-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def local_pair(
    device: str = "device", server: str = "server", capacity: int = CAPACITY
) -> tuple[LocalChannel, LocalChannel]:
    """Return both sides: the device's, whose peer is the server, and the server's."""
    up: queue.Queue[bytes | None] = queue.Queue(capacity)
    down: queue.Queue[bytes | None] = queue.Queue(capacity)
    near, far = LocalChannel(server, up, down), LocalChannel(device, down, up)
    far.cut = near.cut
    return near, far
