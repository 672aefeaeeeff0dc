"""The server's end of gRPC: who may open streams, how many, and a thread for each."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from alkit.split.channel import LIMIT, ChannelLost
from alkit.split.grpc_channel import (
    METHOD,
    SERVICE,
    GrpcChannel,
    check_loopback,
    connect,
    options_of,
)
from alkit.split.handshake import Certificates
from alkit.split.quiet_grpc import grpc

__all__ = ["Listener", "loopback"]

EACH = 2  # streams of an identity: the old one may not know yet that it is cut


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
        limit: int = LIMIT,
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
            options=options_of(patience_s),
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
                check_loopback(address)
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
        self._start(channel.take, pieces)
        self._start(self.accept, channel, identity)
        yield from channel.pieces()

    def _heard(self, channel: GrpcChannel) -> None:
        """End a stream on which no message has come, not even one that is no message."""
        if not channel.stats().received:
            channel.fail(ChannelLost(f"{channel.peer} sent no hello in {self.hello_s:g} s"))

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True, name="alkit-stream")
        self.threads = [other for other in self.threads if other.is_alive()] + [thread]
        thread.start()


@contextmanager
def loopback(server: Any) -> Iterator[Callable[[int], GrpcChannel]]:
    """Let a `Server` listen on loopback, without certificates; gives what connects a device."""
    capacity = 2 * max(server.settings.micros) + 4
    listener = Listener(server.join, streams=2 * server.settings.devices, capacity=capacity)
    try:
        yield lambda index: connect(f"127.0.0.1:{listener.port}", capacity=capacity)
    finally:
        listener.close()


def _identity(context: Any) -> int:
    """Return the device that the peer's certificate names; -1, which no device is, for others."""
    for name in context.auth_context().get("x509_common_name", ()):
        kind, _, number = name.decode(errors="replace").partition("-")
        if kind == "device" and number.isdecimal():
            return int(number)
    return -1
