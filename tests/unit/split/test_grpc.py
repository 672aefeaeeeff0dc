"""gRPC gives the same bits as queues, and finds losses."""

import asyncio
import socket
import threading
from contextlib import asynccontextmanager
from functools import wraps

import pytest
import torch

from alkit.split.device import Device, Job
from alkit.split.grpc_link import connect, listen
from alkit.split.link import Lost, Refused
from alkit.split.settings import Settings
from alkit.split.stream import Stream
from alkit.split.wire import Message
from tests.unit.split.helpers import parts, same_bits, trained, units
from tests.unit.split.lab import LIMIT_S, until


@pytest.mark.parametrize(
    "options",
    [
        {"cut": 2, "micro": 3, "dropout": 0.3},
        {"cut": [1, 3], "micro": [4, 2], "norm": "batch"},
        {"cut": 4, "method": "fed"},
        {"cut": 0, "method": "central"},
        {"cut": 2, "method": "splitfed2"},
        {"cut": 2, "method": "split"},
    ],
)
def test_same_bits_as_queues(options):
    local, network = (trained([20, 13], transport=way, **options) for way in ("local", "grpc"))
    assert same_bits(local, network)
    assert local.sent_bytes == network.sent_bytes


def test_it_runs_inside_a_running_loop():
    """As in a notebook, whose cells run on one."""

    async def cell():
        return trained([8], epochs=1)

    assert same_bits(asyncio.run(cell()), trained([8], epochs=1))


class Echo:
    """A server that sends back what comes."""

    def __init__(self):
        self.lost, self.links = [], []

    async def accept(self, link):
        self.links.append(link)
        try:
            while True:
                await link.send(await link.receive("probe", "load"))
        except Exception as error:
            self.lost.append(error)


@asynccontextmanager
async def echoing(**options):
    echo = Echo()
    async with listen(echo.accept, **options) as port:
        echo.address = f"127.0.0.1:{port}"
        yield echo


def run(work):
    return asyncio.run(asyncio.wait_for(work, LIMIT_S))


def looped(test):
    """Let a test that awaits run on a loop of its own."""
    return wraps(test)(lambda **given: run(test(**given)))


async def asks(address):
    """Connect, and have something sent back."""
    link = await connect(address)
    await link.send(Message("probe"))
    assert (await link.receive("probe", limit_s=20)).kind == "probe"
    return link


def test_nobody_is_there():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(Lost, match=r"no server at .* within 0.5 s"):
            run(connect(address, wait_s=0.5))


def test_a_refusal_is_not_tried_again():
    settings, calls = Settings(4, (2,)), []
    job = Job(settings, units(), Stream(*parts([8])[0], settings, 0))

    async def fail():
        calls.append(1)
        raise Refused("no")

    with pytest.raises(Refused):
        run(Device(0, job, retries=20, pause_s=60).run(fail))
    assert len(calls) == 1


@looped
async def test_bytes_that_are_no_message_end_the_stream():
    async with echoing() as echo:
        link = await connect(echo.address)
        await link._write(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
        with pytest.raises(Lost):
            await link.receive("probe", limit_s=20)
        assert "no message of alkit" in str(echo.lost[0])


@looped
async def test_a_message_above_the_limit_ends_the_stream():
    async with echoing(limit=1 << 16) as echo:
        link = await connect(echo.address)
        await link.send(Message("load", tensors={"load": torch.zeros(1 << 17)}))
        with pytest.raises(Lost):
            await link.receive("load", limit_s=20)
        assert echo.links[0].received_bytes == 0


@looped
async def test_a_closed_side_is_seen_at_once_and_a_taken_address_is_said():
    async with echoing() as echo:
        with pytest.raises(OSError, match="can't listen"):
            async with listen(echo.accept, echo.address):
                pass
        link = await asks(echo.address)
        link.close()
        await until(lambda: echo.lost or echo.links[0].ended.is_set())
        with pytest.raises(Lost):
            await link.receive("probe")


def test_no_thread_is_left():
    before = {thread.name for thread in threading.enumerate()}
    trained([8], transport="grpc", epochs=1)

    def ours():
        now = {thread.name for thread in threading.enumerate()} - before
        return any(name.startswith("alkit") for name in now)

    run(until(lambda: not ours()))
