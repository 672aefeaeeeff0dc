"""The channel over gRPC: one bidirectional stream a connection, bytes only, no generated code.

    compute thread  --send-->  bounded queue  -->  gRPC's writer  -->  pieces of 64 KiB
    compute thread  <-receive-  bounded queue  <--  reader thread  <--  pieces

gRPC's own pings find a link that has been cut; a stream that ends without a goodbye is a loss. With
certificates both sides show who they are (mutual TLS); without, only loopback is allowed.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from alkit.split.channel import LIMIT, PIECE, Channel, ChannelLost
from alkit.split.handshake import Certificates, diagnose
from alkit.split.quiet_grpc import grpc
from alkit.split.wire import Assembler, Message, WireError, stamped

__all__ = ["METHOD", "SERVICE", "GrpcChannel", "check_loopback", "connect", "options_of"]

SERVICE, METHOD = "alkit.split", "Train"


class GrpcChannel(Channel):
    """One side of a stream; made by `connect` and by `Listener`.

    Args:
        limit: bytes of a message that may come.
        capacity: messages that may wait on either side.
        end: ends the stream at once.
    """

    def __init__(self, peer: str, limit: int, capacity: int, end: Callable[[], object]) -> None:
        super().__init__(peer, queue.Queue(capacity), queue.Queue(capacity))
        self.end = end
        self.assembler = Assembler(limit)
        self.reason: BaseException = ChannelLost(f"the stream to {peer} is closed")

    def cancel(self) -> None:
        """See `Channel`."""
        self.end()

    def _lost(self, reading: bool) -> ChannelLost | None:
        if not self.ended.is_set() or (reading and not self.inbox.empty()):
            return None
        lost = ChannelLost(str(self.reason))
        lost.__cause__ = self.reason
        return lost

    def _read(self, found: Message | BaseException) -> Message:
        if isinstance(found, BaseException):
            raise found
        return found

    # ---- gRPC's side

    def pieces(self) -> Iterator[bytes]:
        """Yield what is to be sent, as the link takes it, until `close`."""
        while True:
            try:
                frame = self.outbox.get(timeout=0.2)
            except queue.Empty:
                if self.ended.is_set():
                    return
                continue
            if frame is None:
                return
            frame = stamped(frame, time.perf_counter())
            for start in range(0, len(frame), PIECE):
                yield frame[start : start + PIECE]

    def take(self, pieces: Iterator[bytes]) -> None:
        """Put what comes together, until the stream ends; runs on a thread of its own."""
        try:
            for piece in pieces:
                self.heard_s = time.monotonic()
                for message in self.assembler.feed(piece, time.perf_counter()):
                    self._put(message)
            self.fail(ChannelLost(f"{self.peer} has ended the stream"))
        except WireError as error:
            self._put(error)
            self.fail(error)
        except grpc.RpcError as error:
            self.fail(ChannelLost(f"the stream to {self.peer} broke: {_said(error)}"))
        except BaseException as error:  # whatever it is, whoever receives raises it
            self.fail(error)

    def fail(self, reason: BaseException) -> None:
        """The stream has ended, and why."""
        if not self.ended.is_set():
            self.reason = reason
            self.ended.set()

    def _put(self, found: Message | BaseException) -> None:
        while not self.ended.is_set():
            try:
                return self.inbox.put(found, timeout=0.1)
            except queue.Full:
                continue


def connect(
    address: str,
    certificates: Certificates | None = None,
    *,
    limit: int = LIMIT,
    capacity: int = 64,
    patience_s: float = 5.0,
    wait_s: float = 10.0,
) -> GrpcChannel:
    """Return a device's channel to the server at `address`.

    Raises:
        ValueError: an open address without certificates.
        ChannelLost: nobody is there within `wait_s` seconds.
        HandshakeFailed: somebody is, and one side does not believe the other; says why.
    """
    options = options_of(patience_s)
    if certificates is None:
        check_loopback(address)
        base = grpc.insecure_channel(address, options)
    else:
        authority, certificate, key = certificates.read()
        credentials = grpc.ssl_channel_credentials(authority, key, certificate)
        base = grpc.secure_channel(address, credentials, options)
    try:
        _wait(base, address, certificates, wait_s)
    except ChannelLost:
        base.close()
        raise
    channel = GrpcChannel(f"server at {address}", limit, capacity, base.close)
    call = base.stream_stream(f"/{SERVICE}/{METHOD}")(channel.pieces())

    def read() -> None:
        channel.take(call)
        base.close()

    threading.Thread(target=read, daemon=True, name="alkit-stream").start()
    return channel


def _wait(base: Any, address: str, certificates: Certificates | None, wait_s: float) -> None:
    """Wait until the other side is ready, and look every second why it is not."""
    end_s, ready = time.monotonic() + wait_s, grpc.channel_ready_future(base)
    while True:
        try:
            return ready.result(timeout=min(1.0, max(0.0, end_s - time.monotonic())))
        except grpc.FutureTimeoutError:
            diagnose(address, certificates)
            if time.monotonic() >= end_s:
                raise ChannelLost(f"no server at {address} within {wait_s} s") from None


def options_of(patience_s: float) -> list[tuple[str, Any]]:
    """Return gRPC's options: pings while a stream is open, one size of pieces, no silent connection
    again."""
    wait_ms = int(1000 * patience_s)
    return [
        ("grpc.keepalive_time_ms", max(1000, wait_ms // 5)),
        ("grpc.keepalive_timeout_ms", wait_ms),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 500),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_receive_message_length", 2 * PIECE),
        ("grpc.max_send_message_length", 2 * PIECE),
        ("grpc.so_reuseport", 0),
        ("grpc.enable_retries", 0),
    ]


def check_loopback(address: str) -> None:
    """See that an address without certificates is this machine's own.

    Raises:
        ValueError: it is open to others.
    """
    host = address.rpartition(":")[0].strip("[]")
    if host not in ("127.0.0.1", "::1", "localhost"):
        raise ValueError(
            f"{address} is open to others: give certificates (alkit split certs makes them), or"
            " listen at 127.0.0.1"
        )


def _said(error: grpc.RpcError) -> str:
    code = getattr(error, "code", lambda: None)()
    details = getattr(error, "details", lambda: "")()
    return f"{code.name if code else 'unknown'} {details or ''}".strip()
