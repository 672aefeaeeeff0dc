"""Lost links, killed devices and restarted servers: training ends, and in known bits."""

import copy
import threading
import time

import pytest
import torch

from alkit.split.channel import ChannelLost, local_pair
from alkit.split.device import Device, Job
from alkit.split.server import QuorumLost, Server
from alkit.split.settings import Settings
from alkit.split.stream import Stream
from alkit.split.train import _record
from alkit.split.wire import Message, WireError
from tests.unit.split.helpers import parts, same_bits, trained, units

SIZES = [20, 17]
OPTIONS = {"epochs": 3, "batch": 8, "lr": 0.1, "dropout": 0.3}


class Killed(BaseException):
    """The end of a device's process."""


def wait_until(condition, limit_s=120.0):
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


class Lab:
    """A server and devices that can be hurt.

    A hurt is (device, message it sends, what happens): "cut" takes the link away; "kill" ends the
    device, which comes back as a new one, `late_s` later and after `late_rounds` rounds; "gone"
    ends it for good.
    """

    def __init__(self, folder, hurts=(), cut=2, micro=3, late_s=0.0, late_rounds=0, **settings):
        options = {**OPTIONS, "grace_s": 20.0, "join_s": 20.0} | settings
        self.net = {"norm": options.pop("norm", "none"), "dropout": options.pop("dropout")}
        self.settings = Settings(4, (cut,) * len(SIZES), micros=(micro,), **options)
        self.folder, self.hurts = folder, list(hurts)
        self.late_s, self.late_rounds = late_s, late_rounds
        self.sent = dict.fromkeys(range(len(SIZES)), 0)
        self.threads, self.errors = [], []
        self.server = self.new_server()

    def new_server(self):
        made = units(**self.net)
        options = {"example": parts(SIZES)[0][0][:1], "path": self.folder / "server.pt"}
        return Server(made, self.settings, SIZES, **options)

    def device(self, index):
        stream = Stream(*parts(SIZES)[index], self.settings, index)
        job = Job(self.settings, copy.deepcopy(units(**self.net)), stream)
        return Device(index, lambda told: job, folder=self.folder, pause_s=0.02, retries=200)

    def connect(self, index, identity=None):
        server = self.server
        if server is None:
            raise ChannelLost("no server")
        near, far = local_pair(f"device {index}", "server", 50)
        send = near.send

        def hurting(message: Message) -> None:
            self.sent[index] += 1
            for hurt in [h for h in self.hurts if h[:2] == (index, self.sent[index])]:
                self.hurts.remove(hurt)
                near.cut.set()
                if hurt[2] != "cut":
                    raise Killed(hurt[2])
            send(message)

        near.send = hurting
        thread = threading.Thread(target=server.join, args=(far, identity))
        self.threads.append(thread)
        thread.start()
        return near

    def live(self, index):
        while True:
            try:
                return self.device(index).run(lambda: self.connect(index))
            except Killed as end:
                if end.args[0] == "gone":
                    return None
                time.sleep(self.late_s)
                wait_until(lambda: len(self.server.records) >= self.late_rounds)
            except BaseException as error:
                self.errors.append(error)
                return None

    def hold(self, record):
        """Wait, after the second round, until all devices are there."""
        if len(self.server.records) == 2:
            wait_until(lambda: len(self.server.channels) == len(SIZES))

    def run(self):
        lives = [threading.Thread(target=self.live, args=(at,)) for at in range(len(SIZES))]
        for life in lives:
            life.start()
        try:
            self.server.run()
        finally:
            for thread in lives + self.threads:
                thread.join(120)
                assert not thread.is_alive()
        assert not self.errors
        return _record(self.server, [])


def whole(cut=2, micro=3, **options):
    return trained(SIZES, cut=cut, micro=micro, **OPTIONS | options)


def repeated(record, **options):
    """Run the recorded plan again, without any fault."""
    return trained(SIZES, cut=2, micro=3, plan=record.plan, **OPTIONS | options)


# hello, 6 probes, clock; then 9 acts (device 1: 7) and a done for each of 3 rounds
@pytest.mark.parametrize("message", [9, 10, 11, 12, 14, 17, 18, 19, 22, 27, 28, 29, 30, 36, 38])
@pytest.mark.parametrize("way", ["cut", "kill"])
def test_all_come_back_and_nothing_has_happened(tmp_path, message, way):
    record = Lab(tmp_path, [(1, message, way)]).run()
    assert same_bits(record, whole())


@pytest.mark.parametrize("message", [10, 12, 15])
def test_running_statistics_of_a_dropped_iteration_are_dropped(tmp_path, message):
    lab = Lab(tmp_path, [(1, message, "cut")], norm="batch", least=2)
    assert same_bits(lab.run(), whole(norm="batch"))


@pytest.mark.parametrize("cut", [0, 4])
@pytest.mark.parametrize("message", [9, 10, 12])
def test_a_lost_link_of_central_and_federated_devices(tmp_path, cut, message):
    lab = Lab(tmp_path, [(1, message, "cut"), (0, message, "kill")], cut=cut)
    assert same_bits(lab.run(), whole(cut))


def test_several_at_once(tmp_path):
    hurts = [(0, 12, "cut"), (1, 13, "kill"), (0, 25, "kill"), (1, 40, "cut"), (1, 41, "cut")]
    assert same_bits(Lab(tmp_path, hurts).run(), whole())


def test_a_link_that_comes_back_goes_on_from_its_step(tmp_path):
    """The round is not begun anew: nothing but the cut iteration is done twice."""
    lab = Lab(tmp_path, [(1, 16, "cut")])
    lab.run()
    # 3 rounds of 9 acts and a done, two hellos with probes and clock, and at most one iteration
    assert lab.sent[1] <= 3 * 10 + 2 * 8 + 3


def test_others_go_on_without_a_lost_device(tmp_path):
    lab = Lab(tmp_path, [(1, 14, "gone")], grace_s=0.3)
    record = lab.run()
    assert [sorted(each.weights) for each in record.rounds] == [[0]] * 3
    assert same_bits(record, repeated(record))


@pytest.mark.parametrize("message", [14, 16])
def test_a_device_that_comes_late_joins_the_next_round(tmp_path, message):
    """Its optimisers begin anew, on both sides; the record says so and can be repeated.

    Message 14 is in the middle of the first round. With 16 it would have handed that round in: what
    it has saved for the second one belongs to a round that was averaged without it.
    """
    lab = Lab(tmp_path, [(1, message, "kill")], grace_s=0.0, late_rounds=1, epochs=5)
    lab.server.report = lab.hold
    record = lab.run()
    took_part = [1 in each.weights for each in record.rounds]
    back = took_part.index(True)
    assert back > 0
    assert all(took_part[back:])
    fresh = [each.attendance[1].fresh for each in record.rounds[back:]]
    assert fresh == [True] + [False] * (len(fresh) - 1)
    assert same_bits(record, repeated(record, epochs=5))


def test_too_few_devices(tmp_path):
    lab = Lab(tmp_path, [(1, 14, "gone")], quorum=2, join_s=0.5)
    with pytest.raises(QuorumLost, match="quorum is 2"):
        lab.run()


def test_a_device_that_never_comes(tmp_path):
    lab = Lab(tmp_path, [(1, 1, "gone")], join_s=0.5)
    record = lab.run()
    assert [sorted(each.weights) for each in record.rounds] == [[0]] * 3


@pytest.mark.parametrize("after", [1, 2])
def test_a_restarted_server_goes_on(tmp_path, after):
    """The server ends in the middle of a round; a new one reads the checkpoint."""
    lab = Lab(tmp_path)
    first = lab.server
    first.report = lambda record: len(first.records) == after and end.set()
    end = threading.Event()
    lives = [threading.Thread(target=lab.live, args=(at,)) for at in range(len(SIZES))]
    runner = threading.Thread(target=lambda: pytest.raises(ConnectionError, first.run))
    for thread in [*lives, runner]:
        thread.start()
    assert end.wait(20)
    lab.server = None  # nobody is reached any more
    for channel in list(first.channels.values()):
        channel.cut.set()
    first.stop(ConnectionError("the end of the server's process"))
    runner.join(20)
    lab.server = second = lab.new_server()
    assert second.round in (after, after + 1)
    second.run()
    for thread in lives + lab.threads:
        thread.join(30)
        assert not thread.is_alive()
    assert not lab.errors
    assert same_bits(_record(second, []), whole())


@pytest.mark.parametrize("method", ["split", "splitfed2"])
@pytest.mark.parametrize("message", [10, 12, 17])
def test_one_tail_and_a_lost_device(tmp_path, method, message):
    """With one tail for all there is no way back into a drawn order; the others go on."""
    lab = Lab(tmp_path, [(1, message, "cut")], micro=1, method=method)
    record = lab.run()
    assert all(torch.isfinite(value).all() for value in record.state.values())
    if method == "split":
        assert same_bits(record, whole(micro=1, method=method))


def test_one_tail_and_nobody_left(tmp_path):
    hurts = [(0, 10, "gone"), (1, 10, "gone")]
    with pytest.raises(QuorumLost, match="0 devices are done"):
        Lab(tmp_path, hurts, micro=1, method="splitfed2").run()


# ---- what a server refuses


def hello(**changes):
    values = {"device": 0, "job": "", "network": "", "round": -1, "step": -1, "saved": []} | changes
    return Message("hello", values=values)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([hello(device=2)], "no device 2"),
        ([hello(device=-1)], "no device -1"),
        ([hello(job="other")], "job 'other'"),
        ([Message("probe")], "where a hello was due"),
        ([hello(), Message("load")], "where a probe was due"),
    ],
)
def test_strangers_are_refused(tmp_path, messages, words):
    server = Lab(tmp_path).server
    near, far = local_pair()
    thread = threading.Thread(target=server.join, args=(far,))
    thread.start()
    for message in messages:
        near.send(message)
    found = near.receive(10)
    while found.kind != "error":
        found = near.receive(10)
    assert words in found.values["text"]
    thread.join(10)
    assert not thread.is_alive()
    assert server.failure is None
    assert not server.channels


def test_a_device_with_anothers_certificate(tmp_path):
    server = Lab(tmp_path).server
    near, far = local_pair()
    near.send(hello())
    server.join(far, identity=1)
    assert "certificate is of device 1" in near.receive(1).values["text"]


def test_a_repeated_message_is_refused():
    near, far = local_pair()
    near.send(Message("probe"))
    frame = near.outbox.queue[0]
    near.outbox.put(frame)
    assert far.receive(1).kind == "probe"
    with pytest.raises(WireError, match="repeated"):
        far.receive(1)


def test_a_channel_that_is_silent():
    near, _ = local_pair()
    with pytest.raises(ChannelLost, match="in 0.1 s"):
        near.receive(0.1)


def test_a_round_begun_again_is_as_fresh_as_before(tmp_path):
    record = Lab(tmp_path, [(1, 12, "kill")]).run()
    assert [each.attendance[1].fresh for each in record.rounds] == [True, False, False]
    assert same_bits(record, repeated(record))
