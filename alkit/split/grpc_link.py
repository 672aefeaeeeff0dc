"""Links over gRPC: a stream a device, bytes only, no generated code.

gRPC orders, delimits and limits messages; its pings find a link that is cut. With certificates both
sides show who they are (mutual TLS); without, only loopback is allowed.
"""

import asyncio
import logging
import os
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from alkit.data.extras import extra
from alkit.split.certs import Certificates
from alkit.split.link import AHEAD, Link, Lost, Refused

# else every connection that is no TLS is a line in the log
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

with extra("split", "a link between machines"):
    import grpc

log = logging.getLogger(__name__)

METHOD = "/alkit.split/Train"
LIMIT = 1 << 30  # bytes of a message, where nobody knows the plan yet
HANDSHAKE_S = 10.0  # for who connects to show who it is
EACH = 2  # streams of a certificate: the old one may not know yet that it is cut


@asynccontextmanager
async def listen(
    accept: Callable[[Link, int | None], Awaitable[None]],
    address: str = "127.0.0.1:0",
    certificates: Certificates | None = None,
    *,
    streams: int = 64,
    patience_s: float = 5.0,
    limit: int = LIMIT,
    ahead: int = AHEAD,
) -> AsyncIterator[int]:
    """Accept streams; gives the port.

    Args:
        accept: called with each link and the device that its certificate names, None without.
        address: host and port; port 0 takes a free one.
        certificates: without them only loopback is allowed, and everybody there is let in.
        streams: at most so many at a time.
        patience_s: seconds without a sign of life after which the other side is lost.
        limit: bytes of a message.
    Raises:
        ValueError: an open address without certificates.
        OSError: the address is taken.
    """
    if certificates is None:
        check_loopback(address)
    _raise_handles()
    open_now: dict[int | None, int] = {}

    async def train(_: Any, context: Any) -> None:
        who = None if certificates is None else _identity(context)
        peer = context.peer() if who is None else f"device {who}"
        if who is not None and open_now.get(who, 0) >= EACH:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{peer} has {EACH} streams")
        open_now[who] = open_now.get(who, 0) + 1
        link = Link(peer, _reading(context.read, peer), _writing(context.write, peer), int, ahead)
        try:
            await accept(link, who)
        finally:
            open_now[who] -= 1
            link.close()

    server = grpc.aio.server(options=_options(patience_s, limit), maximum_concurrent_rpcs=streams)
    handler = grpc.stream_stream_rpc_method_handler(train)
    service, method = METHOD[1:].split("/")
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {method: handler})]
    )
    try:
        if certificates is None:
            port = server.add_insecure_port(address)
        else:
            authority, certificate, key = certificates.read()
            shown = grpc.ssl_server_credentials([(key, certificate)], authority, True)
            port = server.add_secure_port(address, shown)
    except RuntimeError as error:
        raise OSError(f"can't listen at {address}: {error}") from error
    await server.start()
    try:
        yield port
    finally:
        await server.stop(1.0)


async def connect(
    address: str,
    certificates: Certificates | None = None,
    *,
    patience_s: float = 5.0,
    wait_s: float = 10.0,
    limit: int = LIMIT,
    ahead: int = AHEAD,
) -> Link:
    """Return a device's link to the server at `address`.

    Raises:
        ValueError: an open address without certificates.
        Lost: nobody is there within `wait_s` seconds.
        Refused: somebody is, and one side does not believe the other.
    """
    options, shown = _options(patience_s, limit), None
    if certificates is None:
        check_loopback(address)
    else:
        authority, certificate, key = certificates.read()
        shown = grpc.ssl_channel_credentials(authority, key, certificate)
    for again in (False, True):  # a server that has just begun to listen is there the next time
        channel = (
            grpc.aio.insecure_channel(address, options)
            if shown is None
            else grpc.aio.secure_channel(address, shown, options)
        )
        try:
            await asyncio.wait_for(channel.channel_ready(), wait_s)
            break
        except TimeoutError:
            await channel.close()
        if not await _answers(address):
            raise Lost(f"no server at {address} within {wait_s:g} s")
        if again:
            raise Refused(
                f"somebody listens at {address}, and one side does not believe the other: both"
                " certificates must come from one `alkit split certs`, the server's with this"
                " address among --hosts; or one side has none"
            )
    call, peer = channel.stream_stream(METHOD)(), f"server at {address}"

    def end() -> None:
        call.cancel()
        ending.append(asyncio.ensure_future(channel.close()))

    ending: list[Any] = []  # a task that nobody holds may be dropped
    return Link(peer, _reading(call.read, peer), _writing(call.write, peer), end, ahead)


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


def _options(patience_s: float, limit: int) -> list[tuple[str, int]]:
    wait_ms = int(1000 * patience_s)
    return [
        ("grpc.keepalive_time_ms", max(1000, wait_ms // 5)),
        ("grpc.keepalive_timeout_ms", wait_ms),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.server_handshake_timeout_ms", int(1000 * HANDSHAKE_S)),
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", limit),
        ("grpc.so_reuseport", 0),
        ("grpc.enable_retries", 0),
    ]


def _reading(
    read: Callable[[], Awaitable[Any]], peer: str
) -> Callable[[], Awaitable[bytes | None]]:
    async def frame() -> bytes | None:
        try:
            found = await read()
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            raise Lost(f"the stream to {peer} broke: {_said(error)}") from error
        return None if found is grpc.aio.EOF else bytes(found)

    return frame


def _writing(
    write: Callable[[bytes], Awaitable[Any]], peer: str
) -> Callable[[bytes], Awaitable[Any]]:
    async def frame(own: bytes) -> None:
        try:
            await write(own)
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            raise Lost(f"the stream to {peer} broke: {_said(error)}") from error

    return frame


def _said(error: BaseException) -> str:
    code, details = (getattr(error, name, lambda: "")() for name in ("code", "details"))
    return f"{getattr(code, 'name', '')} {details or error}".strip()


async def _answers(address: str) -> bool:
    """Say whether somebody takes a connection."""
    host, _, port = address.rpartition(":")
    try:
        opening = asyncio.open_connection(host.strip("[]"), int(port))
        _, writer = await asyncio.wait_for(opening, 1.0)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _identity(context: Any) -> int:
    """Return the device that the peer's certificate names; -1, which no device is, for others."""
    for name in context.auth_context().get("x509_common_name", ()):
        kind, _, number = name.decode(errors="replace").partition("-")
        if kind == "device" and number.isdecimal():
            return int(number)
    return -1


def _raise_handles() -> None:
    """Take as many handles as this process may: idle connections are not to use them up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
