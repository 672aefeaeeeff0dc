"""The channel over gRPC: one bidirectional stream a connection, bytes only, no generated code.

    compute thread  --send-->  bounded queue  -->  gRPC's writer  -->  pieces of 64 KiB
    compute thread  <-receive-  bounded queue  <--  reader thread  <--  pieces

gRPC's own pings find a link that has been cut; a stream that ends without a goodbye is a loss. With
certificates both sides show who they are (mutual TLS); without, only loopback is allowed.
"""

import logging
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# else every connection that is no TLS is a line in the log; `handshake` tells who should know
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from alkit.split.channel import PIECE, ChannelLost, Numbers, Stats
from alkit.split.handshake import diagnose
from alkit.split.wire import Assembler, Message, WireError, stamped

__all__ = ["Certificates", "GrpcChannel", "Listener", "connect", "loopback"]

log = logging.getLogger(__name__)
SERVICE, METHOD = "alkit.split", "Train"
NAME = "alkit-server"  # in the server's certificate
EACH = 2  # streams of an identity: the old one may not know yet that it is cut


@dataclass(frozen=True)
class Certificates:
    """Who one is, and who says so: paths of PEM files."""

    authority: Path
    certificate: Path
    key: Path

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return authority, certificate and key."""
        return (
            self.authority.read_bytes(),
            self.certificate.read_bytes(),
            self.key.read_bytes(),
        )


class GrpcChannel:
    """One side of a stream; made by `connect` and by `Listener`.

    Args:
        peer: who is at the other end, for messages.
        limit: bytes of a message that may come.
        capacity: messages that may wait on either side.
        cancel: ends the stream at once.
    """

    def __init__(self, peer: str, limit: int, capacity: int, cancel: Callable[[], object]) -> None:
        self.peer, self.cancel = peer, cancel
        self.outbox: queue.Queue[bytes | None] = queue.Queue(capacity)
        self.inbox: queue.Queue[Message | BaseException] = queue.Queue(capacity)
        self.numbers = Numbers()
        self.assembler = Assembler(limit)
        self.ended = threading.Event()
        self.heard_s = 0.0  # when the last piece came: a long message is a sign of life
        self.reason: BaseException = ChannelLost(f"the stream to {peer} is closed")

    def send(self, message: Message) -> None:
        """See `Channel`."""
        with self.numbers.lock:
            frame = self.numbers.pack(message)
            while not self.ended.is_set():
                try:
                    return self.outbox.put(frame, timeout=0.1)
                except queue.Full:
                    continue
        raise ChannelLost(str(self.reason)) from self.reason

    def receive(self, timeout: float | None = None) -> Message:
        """See `Channel`."""
        end_s = time.monotonic() + (timeout or 0.0)
        while True:
            try:
                found = self.inbox.get(timeout=0.1)
            except queue.Empty:
                if self.ended.is_set() and self.inbox.empty():
                    raise ChannelLost(str(self.reason)) from self.reason
                if timeout is not None and time.monotonic() > max(end_s, self.heard_s + timeout):
                    raise ChannelLost(f"nothing came from {self.peer} in {timeout} s") from None
                continue
            if isinstance(found, BaseException):
                raise found
            return self.numbers.check(found)

    def close(self) -> None:
        """See `Channel`."""
        if self.ended.is_set():
            return
        try:
            self.outbox.put(None, timeout=1.0)
        except queue.Full:
            self.cancel()
        self.ended.set()

    def stats(self) -> Stats:
        """See `Channel`."""
        return self.numbers.stats

    def beat(self) -> None:
        """See `Channel`."""
        self.numbers.beat(self.outbox)

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

    def read(self, pieces: Iterator[bytes]) -> None:
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


class Listener:
    """The server's end: hands every stream that comes to `accept`, on a thread of its own.

    Args:
        accept: called with the channel and the device that its certificate names, if it has one.
        address: host and port; port 0 takes a free one, see `port`.
        certificates: without them only loopback is allowed, and everybody there is let in.
        streams: at most so many at a time, two of each certificate among them.
        hello_s: seconds in which the first message must come.
        limit, capacity: see `GrpcChannel`.
        patience_s: seconds without a sign of life after which a device is lost.
    Raises:
        ValueError: an open address without certificates.
        OSError: the address is taken.
    """

    def __init__(
        self,
        accept: Callable[[GrpcChannel, int | None], None],
        address: str = "127.0.0.1:0",
        certificates: Certificates | None = None,
        *,
        streams: int = 16,
        hello_s: float = 5.0,
        limit: int = 1 << 30,
        capacity: int = 64,
        patience_s: float = 5.0,
    ) -> None:
        self.accept, self.limit, self.capacity = accept, limit, capacity
        self.hello_s, self.open, self.lock = hello_s, Counter[int | None](), threading.Lock()
        self.secure = certificates is not None
        self.threads: list[threading.Thread] = []
        self.server = grpc.server(
            # two threads a stream: one writes, one is gRPC's own for a moment
            ThreadPoolExecutor(2 * streams + 2, thread_name_prefix="alkit-grpc"),
            options=_options(patience_s),
            maximum_concurrent_rpcs=streams,
        )
        handler = grpc.stream_stream_rpc_method_handler(self._stream)
        self.server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})]
        )
        self.port = self._bind(address, certificates)
        self.server.start()

    def close(self) -> None:
        """End all streams, and wait for the threads that served them."""
        self.server.stop(grace=1.0).wait()
        for thread in self.threads:
            thread.join()

    def _bind(self, address: str, certificates: Certificates | None) -> int:
        try:
            if certificates is None:
                _check_loopback(address)
                return self.server.add_insecure_port(address)
            authority, certificate, key = certificates.read()
            credentials = grpc.ssl_server_credentials(
                [(key, certificate)], authority, require_client_auth=True
            )
            return self.server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"can't listen at {address}: {error}") from error

    def _stream(self, pieces: Iterator[bytes], context: Any) -> Iterator[bytes]:
        identity = _identity(context) if self.secure else None
        peer = context.peer() if identity is None else f"device {identity}"
        with self.lock:
            full = identity is not None and self.open[identity] >= EACH
            self.open[identity] += not full
        if full:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{peer} has {EACH} streams already")
        channel = GrpcChannel(peer, self.limit, self.capacity, context.cancel)
        strict = threading.Timer(self.hello_s, self._heard, (channel,))
        strict.daemon = True
        strict.start()

        def gone() -> None:
            strict.cancel()
            channel.fail(ChannelLost(f"{peer} has gone"))
            with self.lock:
                self.open[identity] -= 1

        if not context.add_callback(gone):
            return gone()
        self._start(channel.read, pieces)
        self._start(self.accept, channel, identity)
        yield from channel.pieces()

    def _heard(self, channel: GrpcChannel) -> None:
        """End a stream on which no message has come, not even one that is no message."""
        if not channel.numbers.stats.received:
            channel.fail(ChannelLost(f"{channel.peer} sent no hello in {self.hello_s:g} s"))

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True, name="alkit-stream")
        self.threads = [other for other in self.threads if other.is_alive()] + [thread]
        thread.start()


def connect(
    address: str,
    certificates: Certificates | None = None,
    *,
    limit: int = 1 << 30,
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
    options = _options(patience_s)
    if certificates is None:
        _check_loopback(address)
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
        channel.read(call)
        base.close()

    threading.Thread(target=read, daemon=True, name="alkit-stream").start()
    return channel


def _wait(base: Any, address: str, certificates: Certificates | None, wait_s: float) -> None:
    """Wait until the other side is ready, and look every second why it is not."""
    files = certificates and tuple(map(str, vars(certificates).values()))
    end_s, ready = time.monotonic() + wait_s, grpc.channel_ready_future(base)
    while True:
        try:
            return ready.result(timeout=min(1.0, max(0.0, end_s - time.monotonic())))
        except grpc.FutureTimeoutError:
            diagnose(address, files)
            if time.monotonic() >= end_s:
                raise ChannelLost(f"no server at {address} within {wait_s} s") from None


@contextmanager
def loopback(server: Any) -> Iterator[Callable[[int], GrpcChannel]]:
    """Let a `Server` listen on loopback, without certificates; gives what connects a device."""
    capacity = 2 * max(server.settings.micros) + 4
    listener = Listener(server.join, streams=2 * server.settings.devices, capacity=capacity)
    try:
        yield lambda index: connect(f"127.0.0.1:{listener.port}", capacity=capacity)
    finally:
        listener.close()


def _options(patience_s: float) -> list[tuple[str, Any]]:
    """Pings while a stream is open, one message size for all, no silent connection again."""
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


def _check_loopback(address: str) -> None:
    host = address.rpartition(":")[0].strip("[]")
    if host not in ("127.0.0.1", "::1", "localhost"):
        raise ValueError(
            f"{address} is open to others: give certificates (alkit split certs makes them), or"
            " listen at 127.0.0.1"
        )


def _identity(context: Any) -> int:
    """Return the device that the peer's certificate names; -1, which no device is, for others."""
    for name in context.auth_context().get("x509_common_name", ()):
        kind, _, number = name.decode(errors="replace").partition("-")
        if kind == "device" and number.isdecimal():
            return int(number)
    return -1


def _said(error: grpc.RpcError) -> str:
    code = getattr(error, "code", lambda: None)()
    details = getattr(error, "details", lambda: "")()
    return f"{code.name if code else 'unknown'} {details or ''}".strip()
