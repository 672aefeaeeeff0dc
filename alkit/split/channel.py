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
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from alkit.split.wire import Message, WireError, decode, encode, stamped

__all__ = [
    "LIMIT",
    "PIECE",
    "Channel",
    "ChannelLost",
    "HandshakeFailed",
    "LocalChannel",
    "Stats",
    "beating",
    "local_pair",
]

LIMIT = 1 << 30  # bytes of a message that a channel takes before it knows the plan
CAPACITY = 256  # messages on their way
PIECE = 1 << 16  # bytes in which a network channel sends a message
WAIT_S = 0.1  # between looks whether the stream has ended
Frames = queue.Queue[bytes | None]  # None: the stream ends


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


class Channel(ABC):
    """One side of a stream of messages, which are numbered: one sent twice is refused.

    Args:
        peer: who is at the other end, for messages.
        outbox: frames to be sent.
        inbox: what has come.
    """

    def __init__(self, peer: str, outbox: Frames, inbox: "queue.Queue[Any]") -> None:
        self.peer, self.outbox, self.inbox = peer, outbox, inbox
        self.ended = threading.Event()
        self.heard_s = 0.0  # when something came last: a long message is a sign of life
        self._stats = Stats()
        self._lock = threading.Lock()  # messages are handed over in the order of their numbers

    @abstractmethod
    def _lost(self, reading: bool) -> ChannelLost | None:
        """Return why nothing more comes, if `reading`, or can be sent; None while it can."""

    @abstractmethod
    def _read(self, found: Any) -> Message:
        """Make a message of what lay in the inbox."""

    def send(self, message: Message) -> None:
        """Hand a message over, in order.

        Raises:
            ChannelLost: the other side has gone.
        """
        with self._lock:
            frame = self._pack(message)
            while (lost := self._lost(reading=False)) is None:
                try:
                    return self.outbox.put(frame, timeout=WAIT_S)
                except queue.Full:
                    continue
        raise lost

    def receive(self, timeout: float | None = None) -> Message:
        """Wait for the next message.

        Raises:
            ChannelLost: the other side has gone, or nothing came within `timeout` seconds.
            WireError: it sent what is no message, or one that has come before, or one is missing.
        """
        start_s = time.monotonic()
        while (lost := self._lost(reading=True)) is None:
            try:
                message = self._read(self.inbox.get(timeout=WAIT_S))
            except queue.Empty:
                silent_s = time.monotonic() - max(start_s, self.heard_s)
                if timeout is not None and silent_s > timeout:
                    raise ChannelLost(f"nothing came from {self.peer} in {timeout} s") from None
                continue
            return self._check(message)
        raise lost

    def close(self) -> None:
        """End the stream: what was sent arrives; who waits on this side gets `ChannelLost`."""
        if self._lost(reading=False) is not None:
            return
        try:
            self.outbox.put(None, timeout=1.0)
        except queue.Full:  # the other side does not read any more
            self.cancel()
        self.ended.set()

    @abstractmethod
    def cancel(self) -> None:
        """End the stream at once."""

    def stats(self) -> Stats:
        """Return what went through so far."""
        return self._stats

    def beat(self) -> None:
        """Send a heartbeat if nothing else waits to be sent; never waits."""
        if self._lock.acquire(blocking=False):
            try:
                if self.outbox.empty():  # what waits is a sign of life already
                    self.outbox.put_nowait(self._pack(Message("heartbeat")))
            finally:
                self._lock.release()

    def _pack(self, message: Message) -> bytes:
        """Return the bytes of the next message."""
        frame = encode(replace(message, number=self._stats.sent))
        self._stats.sent += 1
        self._stats.sent_bytes += len(frame)
        return frame

    def _check(self, message: Message) -> Message:
        due = self._stats.received
        if message.number != due:
            raise WireError(
                f"message {message.number} came where {due} was due: repeated, or one was lost"
            )
        self._stats.received += 1
        self._stats.received_bytes += message.size
        return message


class LocalChannel(Channel):
    """One side of a pair in this process; the bytes are those that gRPC would carry."""

    cut = threading.Event()  # shared by both sides: the link is gone, with all that was on it

    def cancel(self) -> None:
        """See `Channel`."""
        self.cut.set()

    def _lost(self, reading: bool) -> ChannelLost | None:
        if self.cut.is_set() or self.ended.is_set():
            return ChannelLost(f"the link to {self.peer} is cut, or was closed here")
        return None

    def _pack(self, message: Message) -> bytes:
        return stamped(super()._pack(message), time.perf_counter())

    def _read(self, found: bytes | None) -> Message:
        if found is None:
            self.ended.set()
            raise ChannelLost(f"{self.peer} has ended the stream")
        message = decode(found, LIMIT)
        # a queue takes no time: what a message waits in it is no transfer
        return replace(message, first_s=message.sent_s, arrived_s=message.sent_s)


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
    up, down = Frames(capacity), Frames(capacity)
    near, far = LocalChannel(server, up, down), LocalChannel(device, down, up)
    near.cut = far.cut = threading.Event()
    return near, far
