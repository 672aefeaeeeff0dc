"""gRPC gives the same bits as queues, finds losses, and lets nobody in who has no certificate."""

import datetime
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from alkit.split.certs import certificates_in, make
from alkit.split.channel import ChannelLost, HandshakeFailed, local_pair
from alkit.split.device import Device
from alkit.split.grpc_channel import connect
from alkit.split.handshake import Certificates
from alkit.split.listener import Listener
from alkit.split.wire import Message
from tests.unit.split.helpers import same_bits, trained
from tests.unit.split.test_faults import Lab, wait_until


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
    # but for the digits of a clock
    assert abs(local.sent_bytes - network.sent_bytes) < 100


def test_lanes_are_seen():
    record = trained([40], transport="grpc", cut=1, micro=4)
    for lane in ("device 0", "uplink 0", "server 0", "downlink 0"):
        assert record.timeline.busy_s(lane) > 0
    ends = [i.end_s for i in record.timeline.intervals if i.resource == "uplink 0"]
    assert ends == sorted(ends)


class Echo:
    """A server that sends back what comes, and remembers who came."""

    def __init__(self, **options):
        self.seen, self.lost, self.channels = [], [], []
        self.listener = Listener(self.accept, **options)
        self.address = f"127.0.0.1:{self.listener.port}"

    def accept(self, channel, identity):
        self.seen.append(identity)
        self.channels.append(channel)
        try:
            while True:
                channel.send(channel.receive())
        except Exception as error:
            self.lost.append(error)
            channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("lab")
    make(made, 2, hosts=["127.0.0.1"])
    return made


def test_certificates_say_who_is_who(folder):
    with Echo(certificates=certificates_in(folder, "server")) as echo:
        for at in (1, 0):
            channel = connect(echo.address, certificates_in(folder, f"device-{at}"))
            channel.send(Message("probe"))
            assert channel.receive(20).kind == "probe"
            channel.close()
        assert echo.seen == [1, 0]


def test_keys_are_for_their_owner(folder):
    assert all((path.stat().st_mode & 0o077) == 0 for path in folder.glob("*.key"))
    with pytest.raises(FileExistsError, match="authority"):
        make(folder, 2)
    with pytest.raises(FileNotFoundError, match="alkit split certs"):
        certificates_in(folder, "device-7")


def raw(folder, who):
    """Return files without a look at them."""
    return Certificates(folder / "authority.pem", folder / f"{who}.pem", folder / f"{who}.key")


def test_strangers_do_not_get_in(folder, tmp_path):
    make(tmp_path / "other", 1)
    other = certificates_in(tmp_path / "other", "device-0")
    # knows whom to believe, and has no certificate that the server believes
    informed = Certificates(folder / "authority.pem", other.certificate, other.key)
    with Echo(certificates=certificates_in(folder, "server")) as echo:
        for stranger, words in [
            (other, "can't be believed"),
            (informed, "does not accept .*device-0.pem"),
            (None, "wants certificates"),
        ]:
            with pytest.raises(HandshakeFailed, match=words):
                connect(echo.address, stranger, wait_s=20)
        assert echo.seen == []


def test_a_false_server_is_not_believed(folder, tmp_path):
    make(tmp_path / "false", 1)
    with (
        Echo(certificates=certificates_in(tmp_path / "false", "server")) as echo,
        pytest.raises(HandshakeFailed, match="can't be believed: certificate signature failure"),
    ):
        connect(echo.address, certificates_in(folder, "device-0"), wait_s=20)


def test_a_device_is_no_server(folder):
    with (
        Echo(certificates=raw(folder, "device-1")) as echo,
        pytest.raises(HandshakeFailed, match="a certificate for device-1: it is not the server"),
    ):
        connect(echo.address, certificates_in(folder, "device-0"), wait_s=20)


def test_a_plain_server_is_told_from_one_with_certificates(folder):
    with Echo() as echo, pytest.raises(HandshakeFailed, match="does not speak TLS"):
        connect(echo.address, certificates_in(folder, "device-0"), wait_s=20)


def test_a_certificate_out_of_date_is_not_believed(folder, tmp_path, monkeypatch):
    """Of a server; one's own is seen before, see below."""
    make_at(tmp_path / "lab", monkeypatch, -400)
    fresh = raw(folder, "device-0")
    late = Certificates(tmp_path / "lab" / "authority.pem", fresh.certificate, fresh.key)
    with (
        Echo(certificates=raw(tmp_path / "lab", "server")) as echo,
        pytest.raises(HandshakeFailed, match="can't be believed: certificate has expired"),
    ):
        connect(echo.address, late, wait_s=20)


def test_a_server_of_another_name_is_not_believed(folder, monkeypatch):
    """The name is checked: it is what --hosts is for."""
    monkeypatch.setattr("alkit.split.certs.LOCAL", ())
    with tempfile.TemporaryDirectory() as lab:
        made = Path(lab) / "lab"
        make(made, 1, hosts=["192.0.2.7", "server.lab"])
        with Echo(certificates=certificates_in(made, "server")) as echo:
            words = "for alkit-server, 192.0.2.7, server.lab: .* --hosts 127.0.0.1"
            with pytest.raises(HandshakeFailed, match=words):
                connect(echo.address, certificates_in(made, "device-0"), wait_s=20)
            assert echo.seen == []


def test_nobody_is_there(folder):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(ChannelLost, match="no server at .* within 0.5 s") as found:
            connect(address, certificates_in(folder, "device-0"), wait_s=0.5)
    assert not isinstance(found.value, HandshakeFailed)


def test_a_handshake_that_failed_is_not_tried_again(tmp_path):
    def fail():
        calls.append(1)
        raise HandshakeFailed("no")

    calls = []
    with pytest.raises(HandshakeFailed):
        Device(0, lambda told: None, retries=20, pause_s=60).run(fail)
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


def test_garbage_is_no_line_in_the_log(folder, tmp_path):
    """Neither in TLS, where gRPC would write one, nor in what is no message, said once."""
    program = """if True:
        import logging, socket, sys, time
        from pathlib import Path
        from alkit.split.certs import certificates_in
        from alkit.split.listener import Listener
        logging.basicConfig(level=logging.INFO)
        files = certificates_in(sys.argv[1], "server")
        listener = Listener(lambda *_: None, certificates=files)
        for number in range(20):
            with socket.create_connection(("127.0.0.1", listener.port)) as link:
                link.sendall(b"GET / HTTP/1.1" if number % 2 else bytes(300))
                link.settimeout(5)
                try:
                    link.recv(1)
                except OSError:
                    pass
        listener.close()
    """
    said = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=120
    )
    assert said.returncode == 0, said.stderr
    assert said.stderr == ""


def test_who_is_refused_again_and_again_is_one_line(tmp_path, caplog):
    server = Lab(tmp_path).server
    for _ in range(10):
        near, far = local_pair()
        near.send(Message("probe"))
        server.join(far, identity=1)
    assert len([line for line in caplog.messages if "a hello was due" in line]) == 1


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:5000", "[::]:0", "example.org:1"])
def test_plain_is_for_loopback(address):
    with pytest.raises(ValueError, match="give certificates"):
        Listener(lambda *_: None, address)
    with pytest.raises(ValueError, match="give certificates"):
        connect(address)


def test_bytes_that_are_no_message_end_the_stream():
    with Echo() as echo:
        channel = connect(echo.address)
        channel.outbox.put(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
        with pytest.raises(ChannelLost):
            channel.receive(20)
        assert "no message of alkit" in str(echo.lost[0])


def test_a_closed_side_is_seen_at_once():
    with Echo() as echo:
        channel = connect(echo.address)
        channel.send(Message("probe"))
        channel.receive(20)
        channel.cancel()
        wait_until(lambda: echo.lost)
        assert isinstance(echo.lost[0], ChannelLost)
        with pytest.raises(ChannelLost):
            channel.receive(20)


def test_a_taken_address():
    with Echo() as echo, pytest.raises(OSError, match="can't listen"):
        Listener(lambda *_: None, echo.address)


def test_no_thread_is_left():
    before = {thread.name for thread in threading.enumerate()}
    trained([8], transport="grpc", epochs=1)

    def left():
        now = {thread.name for thread in threading.enumerate()} - before
        return any(name.startswith("alkit") for name in now)

    wait_until(lambda: not left())


def opened(echo, own, count):
    """Open streams that say nothing."""
    return [connect(echo.address, own) for _ in range(count)]


def test_idle_streams_of_one_certificate_lock_nobody_out(folder):
    """Two of them are open at a time; the others end with a sentence."""
    with Echo(certificates=certificates_in(folder, "server"), streams=6) as echo:
        idle = opened(echo, certificates_in(folder, "device-1"), 6)
        wait_until(lambda: len(echo.seen) == 2 and sum(each.ended.is_set() for each in idle) == 4)
        said = [str(each.reason) for each in idle if each.ended.is_set()]
        assert all("device 1 has 2 streams already" in each for each in said)
        honest = connect(echo.address, certificates_in(folder, "device-0"))
        honest.send(Message("probe"))
        assert honest.receive(20).kind == "probe"
        for channel in [honest, *idle]:
            channel.cancel()
        wait_until(lambda: not echo.listener.open[1])
        again = connect(echo.address, certificates_in(folder, "device-1"))  # there is room again
        again.send(Message("probe"))
        assert again.receive(20).kind == "probe"
        again.cancel()


@pytest.mark.parametrize("said", [b"", b"ALKS"])
def test_who_says_no_hello_is_sent_away(said):
    with Echo(hello_s=0.2) as echo:
        channel = connect(echo.address)
        if said:
            channel.outbox.put(said)
        wait_until(lambda: echo.lost)
        assert "sent no hello in 0.2 s" in str(echo.lost[0])
        with pytest.raises(ChannelLost):
            channel.receive(20)


def test_who_has_said_hello_may_be_silent():
    with Echo(hello_s=600) as echo:
        channel = connect(echo.address)
        channel.send(Message("probe"))
        assert channel.receive(20).kind == "probe"
        echo.listener._heard(echo.channels[0])  # the time is over
        channel.send(Message("probe"))
        assert channel.receive(20).kind == "probe"
        channel.cancel()
