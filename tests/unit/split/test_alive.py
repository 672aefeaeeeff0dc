"""Who computes is alive, who is silent is lost, and who is alive and too slow is left out."""

import queue
import threading
import time

import pytest
import torch

from alkit.split.channel import ChannelLost, beating, local_pair
from alkit.split.expect import Due, Expect
from alkit.split.grpc_channel import connect
from alkit.split.listener import Listener
from alkit.split.wire import Message, WireError
from tests.unit.split.helpers import parts, same_bits, units
from tests.unit.split.test_faults import SIZES, Lab, repeated, wait_until, whole


class Slow(Lab):
    """Device 1 stops before its first step until a test lets it go."""

    def __init__(self, folder, **options):
        self.go, self.steps, self.link = threading.Event(), 0, None
        super().__init__(folder, **options)

    def connect(self, index, identity=None):
        near = super().connect(index, identity)
        self.link = near if index == 1 else self.link
        return near

    def device(self, index):
        made = super().device(index)
        stream = made.prepare({}).stream
        batches = stream.step

        def slowly(step, micro):
            if index == 1:
                self.steps += 1
                assert self.go.wait(60)
            return batches(step, micro)

        stream.step = slowly
        return made


def test_heartbeats_are_no_messages(tmp_path):
    """However long a device computes, as long as heartbeats come."""
    expect = Expect(units(), parts(SIZES)[0][0][:1])
    near, far = local_pair(capacity=2000)
    for _ in range(1000):
        near.send(Message("heartbeat"))
    load = {"load": torch.zeros(1 << 20, dtype=torch.uint8)}
    near.send(Message("load", tensors=load))
    assert expect.receive(far, Due("load"), 5.0).kind == "load"
    near.send(Message("heartbeat"))
    with pytest.raises(WireError, match="heartbeat .* where a hello was due"):
        expect.receive(far, Due("hello"), 5.0)


def rest(channel):
    """Read a channel to its end, and return what that is."""
    while True:
        try:
            channel.receive(20)
        except ConnectionError as error:
            return error


@pytest.mark.parametrize("way", ["local", "grpc"])
def test_heartbeats_do_not_pile_up(way):
    """One waits at most: who does not listen is not flooded, and order is kept beside messages."""
    if way == "local":
        near, far = local_pair()
        count = 1
    else:
        came = queue.Queue()
        listener = Listener(lambda channel, _: came.put(channel), capacity=4)
        near = connect(f"127.0.0.1:{listener.port}", capacity=4)
        far, count = came.get(timeout=20), 200
    with beating(near, 0.001):
        wait_until(lambda: near.stats().sent >= count)
        for _ in range(50):
            near.send(Message("probe"))
            while far.receive(20).kind == "heartbeat":
                pass
    near.close()
    assert isinstance(rest(far), ChannelLost)
    if way == "grpc":
        listener.close()
    assert near.outbox.qsize() <= 2


def test_a_long_round_without_a_message_is_no_loss(tmp_path):
    """Federated: nothing but heartbeats until `done`, for longer than a silent device has."""
    lab = Slow(tmp_path, cut=4, micro=1, heartbeat_s=2.0)
    releasing = threading.Thread(
        # the messages of a greeting, and heartbeats for twice the time
        target=lambda: (wait_until(lambda: lab.link and lab.link.stats().sent >= 18), lab.go.set())
    )
    releasing.start()
    record = lab.run()
    releasing.join()
    assert [sorted(each.weights) for each in record.rounds] == [[0, 1]] * 3
    assert same_bits(record, whole(cut=4, micro=1))


def test_a_silent_device_is_lost(tmp_path, monkeypatch):
    """It hangs with its link open; the others go on."""
    monkeypatch.setattr("alkit.split.channel.Channel.beat", lambda *_: None)
    lab = Slow(tmp_path, heartbeat_s=0.2, grace_s=0.0)
    lab.server.report = lambda record: lab.go.set()
    record = lab.run()
    assert sorted(record.rounds[0].weights) == [0]
    assert same_bits(record, repeated(record))


@pytest.mark.parametrize("method", ["pipelearn", "splitfed2", "split"])
def test_a_live_straggler_has_a_deadline(tmp_path, caplog, method):
    """It is left out of the round, with a sentence, and comes to a later one."""
    micro = 3 if method == "pipelearn" else 1
    lab = Slow(tmp_path, round_s=3.0, method=method, micro=micro, epochs=4)

    def let_go(record):
        lab.go.set()
        if len(lab.server.records) == 1:
            wait_until(lambda: 1 in lab.server.channels)

    lab.server.report = let_go
    record = lab.run()
    assert sorted(record.rounds[0].weights) == [0]
    said = "device 1 is left out of round 0: it was not done after 3 s (round_s)"
    assert said in caplog.messages
    if method == "pipelearn":
        assert any(1 in each.weights for each in record.rounds)
        assert same_bits(record, repeated(record, epochs=4))


def test_a_round_has_no_deadline_before_its_quorum(tmp_path):
    lab = Slow(tmp_path, round_s=0.2, quorum=2)
    start_s = time.monotonic()

    def late():
        wait_until(lambda: lab.steps and time.monotonic() > start_s + 1)
        lab.go.set()

    releasing = threading.Thread(target=late)
    releasing.start()
    record = lab.run()
    releasing.join()
    assert sorted(record.rounds[0].weights) == [0, 1]
