"""A link between a device and the server: messages in order, until one side has gone.

    send    -> queue of at most `ahead` messages -> writer -> gRPC's stream, or this process's
    receive <- the next frame                    <-

`pair` is the link within a process; it carries the bytes that gRPC would. See `grpc_link` for that.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from alkit.split.wire import Message, WireError, decode, encode

AHEAD = 64
FINISH_S = 10.0  # for what was sent to go out
WHY_S = 1.0  # for what the other side said at last


class Lost(ConnectionError):
    """The other side has gone."""


class Refused(ConnectionError):
    """The server does not want this device, and says why; trying again would not help."""


class Link:
    """One side of a stream; made on the loop that uses it.

    Args:
        peer: who is at the other end, for messages.
        read: gives the next frame; None at the end. Raises `Lost`.
        write: hands a frame over, as fast as the link takes it. Raises `Lost`.
        end: ends the stream at once.
        ahead: messages that may wait to be written, so that computing and sending overlap.
    """

    def __init__(
        self,
        peer: str,
        read: Callable[[], Awaitable[bytes | None]],
        write: Callable[[bytes], Awaitable[Any]],
        end: Callable[[], Any],
        ahead: int = AHEAD,
    ) -> None:
        self.peer, self._read, self._write, self._end = peer, read, write, end
        self.ended, self.closed = asyncio.Event(), False
        self.sent_bytes = self.received_bytes = 0
        self._outbox: asyncio.Queue[Message] = asyncio.Queue(ahead)
        self._writer = asyncio.create_task(self._write_all())
        self._inbox: asyncio.Queue[tuple[bytes | None, float]] = asyncio.Queue(ahead)
        self._reader = asyncio.create_task(self._read_all())

    async def send(self, message: Message) -> None:
        """Hand a message over; waits while too many are on their way.

        Raises:
            Lost: the other side has gone.
        """
        if self.ended.is_set():
            raise Lost(f"{self.peer} has gone")
        await self._outbox.put(message)
        if self.ended.is_set():
            raise Lost(f"{self.peer} has gone")

    async def receive(self, *kinds: str, limit_s: float | None = None) -> Message:
        """Return the next message, which must be of one of these kinds.

        Raises:
            Lost: the other side has gone, or says nothing for so long.
            Refused: it says why it ends the stream.
            WireError: it is no message, or of another kind.
        """
        message = await self._next(limit_s)
        if message.kind not in kinds:
            raise WireError(f"{message.name} came where a {' or '.join(kinds)} was due")
        return message

    async def why(self) -> None:
        """Raise what the other side said before it ended the stream, if it did.

        Raises:
            Refused: it does not want this one.
        """
        await asyncio.wait([self._reader], timeout=0 if self.closed else WHY_S)
        while not self._inbox.empty():
            frame, _ = self._inbox.get_nowait()
            with suppress(Lost, WireError):
                self._decoded(frame, 0.0)

    async def finish(self) -> None:
        """End the stream after what was sent."""
        sent = asyncio.create_task(self._outbox.join())
        await asyncio.wait([sent, self._writer], timeout=FINISH_S, return_when="FIRST_COMPLETED")
        sent.cancel()
        self.close()

    def close(self) -> None:
        """End the stream now."""
        if not self.closed:
            self.closed = True
            self._writer.cancel()
            self._reader.cancel()
            self._over()
            self._end()

    async def _write_all(self) -> None:
        try:
            while True:
                frame = encode(await self._outbox.get(), time.perf_counter())
                await self._write(frame)
                self.sent_bytes += len(frame)
                self._outbox.task_done()
        except Lost:
            self._over()  # what has come may still be read, see `why`

    async def _read_all(self) -> None:
        """Take what comes, so that the last word is known before the end of the stream is."""
        frame: bytes | None = b""
        while frame is not None:
            try:
                frame = await self._read()
            except Lost:
                frame = None
            await self._inbox.put((frame, time.perf_counter()))
        self._over()

    async def _next(self, limit_s: float | None) -> Message:
        if self.closed:
            raise Lost(f"{self.peer} has gone")
        try:
            async with asyncio.timeout(limit_s):
                frame, arrived_s = await self._inbox.get()
        except TimeoutError:
            raise Lost(f"nothing came from {self.peer} in {limit_s:g} s") from None
        return self._decoded(frame, arrived_s)

    def _decoded(self, frame: bytes | None, arrived_s: float) -> Message:
        if frame is None:
            self.ended.set()
            raise Lost(f"{self.peer} has ended the stream")
        self.received_bytes += len(frame)
        message = decode(frame, arrived_s)
        if message.kind == "error":
            raise Refused(str(message.values["text"]))
        return message

    def _over(self) -> None:
        """Wake whoever waits for this link: nothing more goes out or comes in."""
        self.ended.set()
        while not self._outbox.empty():
            self._outbox.get_nowait()
            self._outbox.task_done()
        with suppress(asyncio.QueueFull):  # then nobody waits for it
            self._inbox.put_nowait((None, 0.0))


class _Pipe:
    """Frames that go one way within this process."""

    def __init__(self, ahead: int) -> None:
        self.room, self.frames = asyncio.Semaphore(ahead), asyncio.Queue[bytes | None]()
        self.cut = False  # nobody reads any more

    async def write(self, frame: bytes) -> None:
        await self.room.acquire()
        if self.cut:
            raise Lost("the other side has gone")
        self.frames.put_nowait(frame)

    async def read(self) -> bytes | None:
        frame = await self.frames.get()
        self.room.release()
        if frame is None:
            self.end()  # whoever reads again is told so again
        return frame

    def end(self) -> None:
        self.frames.put_nowait(None)

    def stop(self) -> None:
        self.cut = True
        self.room.release()


def pair(device: str = "device", server: str = "server", ahead: int = AHEAD) -> tuple[Link, Link]:
    """Return a device's and a server's side of a link in this process."""
    up, down, both = _Pipe(ahead), _Pipe(ahead), list[Link]()

    def ending(out: _Pipe, back: _Pipe, other: int) -> Callable[[], None]:
        def end() -> None:
            nothing = out.frames.empty()
            out.end()
            back.stop()
            if nothing:  # else the other side reads what there is, and then the end
                both[other].close()

        return end

    both.append(Link(server, down.read, up.write, ending(up, down, 1), ahead))
    both.append(Link(device, up.read, down.write, ending(down, up, 0), ahead))
    return both[0], both[1]
