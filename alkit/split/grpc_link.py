"""Links over gRPC: a stream a device, bytes only, no generated code.

gRPC orders, delimits and limits messages; its pings find a link that is cut. Nothing is encrypted,
and who connects is believed: machines share a private network.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from alkit.split.link import AHEAD, Link, Lost

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what is wrong is raised here
import grpc

log = logging.getLogger(__name__)

METHOD = "/alkit.split/Train"
LIMIT = 1 << 30  # bytes of a message, where nobody knows the plan yet


@asynccontextmanager
async def listen(
    accept: Callable[[Link], Awaitable[None]],
    address: str = "127.0.0.1:0",
    *,
    streams: int = 64,
    patience_s: float = 5.0,
    limit: int = LIMIT,
    ahead: int = AHEAD,
) -> AsyncIterator[int]:
    """Accept streams; gives the port.

    Args:
        accept: called with each link.
        address: host and port; port 0 takes a free one.
        streams: at most so many at a time.
        patience_s: seconds without a sign of life after which the other side is lost.
        limit: bytes of a message.
    Raises:
        OSError: the address is taken.
    """

    async def train(_: Any, context: Any) -> None:
        peer = context.peer()
        link = Link(peer, _reading(context.read, peer), _writing(context.write, peer), int, ahead)
        try:
            await accept(link)
        finally:
            link.close()

    server = grpc.aio.server(options=_options(patience_s, limit), maximum_concurrent_rpcs=streams)
    handler = grpc.stream_stream_rpc_method_handler(train)
    service, method = METHOD[1:].split("/")
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {method: handler})]
    )
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"can't listen at {address}: {error}") from error
    await server.start()
    try:
        yield port
    finally:
        await server.stop(1.0)


async def connect(
    address: str,
    *,
    patience_s: float = 5.0,
    wait_s: float = 10.0,
    limit: int = LIMIT,
    ahead: int = AHEAD,
) -> Link:
    """Return a device's link to the server at `address`.

    Raises:
        Lost: nobody is there within `wait_s` seconds.
    """
    channel = grpc.aio.insecure_channel(address, _options(patience_s, limit))
    try:
        async with asyncio.timeout(wait_s):
            await channel.channel_ready()
    except TimeoutError as error:
        await channel.close()
        raise Lost(f"no server at {address} within {wait_s:g} s") from error
    call, peer = channel.stream_stream(METHOD)(), f"server at {address}"

    def end() -> None:
        call.cancel()
        ending.append(asyncio.ensure_future(channel.close()))

    ending: list[Any] = []  # a task that nobody holds may be dropped
    return Link(peer, _reading(call.read, peer), _writing(call.write, peer), end, ahead)


def _options(patience_s: float, limit: int) -> list[tuple[str, int]]:
    wait_ms = int(1000 * patience_s)
    return [
        ("grpc.keepalive_time_ms", max(1000, wait_ms // 5)),
        ("grpc.keepalive_timeout_ms", wait_ms),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
        ("grpc.http2.max_ping_strikes", 0),
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
