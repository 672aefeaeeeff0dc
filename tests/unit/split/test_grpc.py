"""gRPC gives the same bits as queues, finds losses, and lets nobody in who has no certificate."""

import asyncio
import datetime
import resource
import socket
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from functools import wraps
from types import SimpleNamespace

import pytest
import torch

from alkit.split import grpc_link
from alkit.split.certs import Certificates, certificates_in, make
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
    """A server that sends back what comes, and remembers who came."""

    def __init__(self):
        self.seen, self.lost, self.links = [], [], []

    async def accept(self, link, identity):
        self.seen.append(identity)
        self.links.append(link)
        try:
            while True:
                await link.send(await link.receive("probe", "load"))
        except Exception as error:
            self.lost.append(error)


@asynccontextmanager
async def echoing(certificates=None, **options):
    echo = Echo()
    async with listen(echo.accept, certificates=certificates, **options) as port:
        echo.address = f"127.0.0.1:{port}"
        yield echo


def run(work):
    return asyncio.run(asyncio.wait_for(work, LIMIT_S))


def looped(test):
    """Let a test that awaits run on a loop of its own."""
    return wraps(test)(lambda **given: run(test(**given)))


async def asks(address, own=None):
    """Connect, and have something sent back."""
    link = await connect(address, own)
    await link.send(Message("probe"))
    assert (await link.receive("probe", limit_s=20)).kind == "probe"
    return link


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("lab")
    make(made, 2, hosts=["127.0.0.1"])
    return made


def raw(folder, who):
    """Return files without a look at them."""
    return Certificates(folder / "authority.pem", folder / f"{who}.pem", folder / f"{who}.key")


@looped
async def test_certificates_say_who_is_who(folder):
    async with echoing(certificates_in(folder, "server")) as echo:
        for at in (1, 0):
            (await asks(echo.address, certificates_in(folder, f"device-{at}"))).close()
        assert echo.seen == [1, 0]
    assert all((path.stat().st_mode & 0o077) == 0 for path in folder.glob("*.key"))
    with pytest.raises(FileExistsError, match="authority"):
        make(folder, 2)
    with pytest.raises(FileNotFoundError, match="alkit split certs"):
        certificates_in(folder, "device-7")


@pytest.mark.parametrize("fault", ["stranger", "informed", "none", "false server", "no server"])
@looped
async def test_who_is_not_believed_does_not_get_in(folder, tmp_path, fault):
    """Nor is it tried again: it would not help."""
    make(tmp_path / "other", 1)
    other, own = (certificates_in(lab, "device-0") for lab in (tmp_path / "other", folder))
    informed = Certificates(folder / "authority.pem", other.certificate, other.key)
    server = certificates_in(folder, "server")
    server = certificates_in(tmp_path / "other", "server") if fault == "false server" else server
    server = raw(folder, "device-1") if fault == "no server" else server
    shown = {"stranger": other, "informed": informed, "none": None}.get(fault, own)

    async with echoing(server) as echo:
        with pytest.raises(Refused, match="does not believe the other"):
            await connect(echo.address, shown, wait_s=2)
        assert echo.seen == []


@looped
async def test_a_server_of_another_name_is_not_believed(tmp_path, monkeypatch):
    """The name is checked: it is what --hosts is for."""
    monkeypatch.setattr("alkit.split.certs.LOCAL", ())
    make(tmp_path / "lab", 1, hosts=["192.0.2.7", "server.lab"])
    async with echoing(certificates_in(tmp_path / "lab", "server")) as echo:
        with pytest.raises(Refused, match="this address among --hosts"):
            await connect(echo.address, certificates_in(tmp_path / "lab", "device-0"), wait_s=2)
        assert echo.seen == []


def test_nobody_is_there(folder):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(Lost, match=r"no server at .* within 0.5 s"):
            run(connect(address, certificates_in(folder, "device-0"), wait_s=0.5))


def test_a_refusal_is_not_tried_again():
    settings, calls = Settings(4, (2,)), []
    job = Job(settings, units(), Stream(*parts([8])[0], settings, 0))

    async def fail():
        calls.append(1)
        raise Refused("no")

    with pytest.raises(Refused):
        run(Device(0, job, retries=20, pause_s=60).run(fail))
    assert len(calls) == 1


def make_at(folder, monkeypatch, days):
    """Make certificates on another day."""

    class Then(datetime.datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.datetime.now(zone) + datetime.timedelta(days=days)

    with monkeypatch.context() as patch:
        patch.setattr(
            "alkit.split.certs.datetime",
            SimpleNamespace(datetime=Then, UTC=datetime.UTC, timedelta=datetime.timedelta),
        )
        make(folder, 2)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("expired", "authority.pem is valid from .* make new ones"),
        ("of tomorrow", "authority.pem is valid from .* clock says"),
        ("another authority", "device-0.pem is of another authority than .*authority.pem"),
        ("another's key", "device-0.key is not the key of .*device-0.pem"),
        ("another's pair", "device-0.pem is for CN=device-1, not device-0"),
        ("no certificate", "device-0.pem is missing: alkit split certs makes it"),
        ("broken certificate", "device-0.pem can't be read as PEM"),
        ("broken key", "device-0.key can't be read as PEM"),
        ("broken authority", "authority.pem can't be read as PEM"),
    ],
)
def test_ones_own_files_are_looked_at_first(tmp_path, monkeypatch, fault, words):
    days = {"expired": -400, "of tomorrow": 2}.get(fault)
    if days is not None:
        make_at(tmp_path / "lab", monkeypatch, days)
    else:
        make(tmp_path / "lab", 2)
    own = tmp_path / "lab"
    if fault == "another authority":
        make(tmp_path / "other", 1)
        (own / "authority.pem").write_bytes((tmp_path / "other" / "authority.pem").read_bytes())
    if fault in ("another's key", "another's pair"):
        (own / "device-0.key").write_bytes((own / "device-1.key").read_bytes())
    if fault == "another's pair":
        (own / "device-0.pem").write_bytes((own / "device-1.pem").read_bytes())
    if fault == "no certificate":
        (own / "device-0.pem").unlink()
    if fault.startswith("broken"):
        file = {"certificate": "device-0.pem", "key": "device-0.key"}.get(fault.split()[1])
        path = own / (file or "authority.pem")
        path.write_text(path.read_text()[: len(path.read_text()) // 2])
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        certificates_in(own, "device-0")


def test_garbage_is_no_line_in_the_log(folder):
    program = """if True:
        import asyncio, logging, socket, sys
        from alkit.split.certs import certificates_in
        from alkit.split.grpc_link import listen
        logging.basicConfig(level=logging.INFO)

        def garbage(port):
            for number in range(20):
                with socket.create_connection(("127.0.0.1", port)) as link:
                    link.sendall(b"GET / HTTP/1.1" if number % 2 else bytes(300))
                    link.settimeout(5)
                    try:
                        link.recv(1)
                    except OSError:
                        pass

        async def main():
            own = certificates_in(sys.argv[1], "server")
            async with listen(lambda *_: None, certificates=own) as port:
                await asyncio.to_thread(garbage, port)

        asyncio.run(main())
    """
    said = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=120
    )
    assert said.returncode == 0, said.stderr
    assert said.stderr == ""


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:5000", "[::]:0", "example.org:1"])
def test_plain_is_for_loopback(address):
    async def listening():
        async with listen(Echo().accept, address):
            pass

    for work in (listening(), connect(address)):
        with pytest.raises(ValueError, match="give certificates"):
            run(work)


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


@looped
async def test_idle_streams_of_one_certificate_lock_nobody_out(folder):
    """Two of them are open at a time; the others end."""
    async with echoing(certificates_in(folder, "server"), streams=6) as echo:
        own = certificates_in(folder, "device-1")
        idle = [await connect(echo.address, own) for _ in range(6)]
        await until(lambda: sum(each.ended.is_set() for each in idle) == 4)
        assert echo.seen == [1, 1]
        honest = await asks(echo.address, certificates_in(folder, "device-0"))
        for link in [honest, *idle]:
            link.close()
        await until(lambda: all(each.ended.is_set() for each in echo.links))
        again = await asks(echo.address, own)  # there is room again
        again.close()


@looped
async def test_idle_connections_do_not_use_up_the_handles(folder, monkeypatch):
    """Who connects and says nothing is sent away; handles are as many as there may be."""
    monkeypatch.setattr(grpc_link, "HANDSHAKE_S", 0.5)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def silent(port):
        with socket.create_connection(("127.0.0.1", port)) as link:
            link.settimeout(20)
            return link.recv(1)

    try:
        async with echoing(certificates_in(folder, "server")) as echo:
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
            port = int(echo.address.rpartition(":")[2])
            assert await asyncio.to_thread(silent, port) == b""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
