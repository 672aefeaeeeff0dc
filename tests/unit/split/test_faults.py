"""Lost links, killed devices, restarted servers and stragglers: training ends, in known bits."""

import asyncio
import os
import signal
import threading
import time

import pytest
import torch

from alkit.split import lobby, waiting
from alkit.split.link import Lost, Refused, pair
from alkit.split.train import _record
from alkit.split.waiting import QuorumLost
from alkit.split.wire import Message
from tests.unit.split.helpers import same_bits, trained
from tests.unit.split.lab import LIMIT_S, SIZES, Lab, hold, repeated, until, whole

# hello and 6 probes; then 9 acts (device 1: 7) and a done for each of 3 rounds
MESSAGES = [8, 9, 10, 11, 13, 15, 16, 18, 25, 27, 36]
SEVERAL = [(0, 12, "cut"), (1, 13, "kill"), (0, 25, "kill"), (1, 40, "cut"), (1, 41, "cut")]
HURTS = [
    *(([(1, at, way)], {}) for at in MESSAGES for way in ("cut", "kill")),
    (SEVERAL, {}),
    # running statistics of a round that is cut off are forgotten, immediate updates taken back
    *(([(1, at, "cut")], {"norm": "batch"}) for at in (9, 11, 14)),
    ([(1, 12, "cut")], {"immediate": True}),
    # central and federated devices; a tail that is handed on
    *(([(1, at, "cut"), (0, at, "kill")], {"cut": 0, "micro": 1}) for at in (8, 11)),
    *(([(1, at, "cut"), (0, at, "kill")], {"cut": 4, "micro": 1}) for at in (8, 11)),
    *(([(1, at, "cut")], {"micro": 1, "method": "split"}) for at in (9, 11, 16)),
]


@pytest.mark.parametrize(("hurts", "options"), HURTS, ids=str)
def test_all_come_back_and_nothing_has_happened(tmp_path, hurts, options):
    least = {"least": 2} if "norm" in options else {}
    assert same_bits(Lab(tmp_path, hurts, **options, **least).run(), whole(**options))


@pytest.mark.parametrize(("message", "times"), [(13, {"grace_s": 0.3}), (1, {"join_s": 0.5})])
def test_others_go_on_without_a_lost_device(tmp_path, message, times):
    """Lost in a round, or never there."""
    record = Lab(tmp_path, [(1, message, "gone")], **times).run()
    assert [sorted(each.weights) for each in record.rounds] == [[0]] * 3
    assert same_bits(record, repeated(record))


@pytest.mark.parametrize("message", [13, 15])
def test_a_device_that_comes_late_joins_the_next_round(tmp_path, message):
    """Its optimisers begin anew, on both sides; the record says so and can be repeated.

    Message 13 is in the middle of the first round. With 15 it would have handed that round in: what
    it has saved for the second one belongs to a round that was averaged without it.
    """
    lab = Lab(tmp_path, [(1, message, "kill")], grace_s=0.0, late_rounds=1, epochs=5)

    def all_there():
        return len(lab.server.records) != 2 or len(lab.server.lobby.links) == len(SIZES)

    lab.server.report = lambda record: hold(all_there)
    record = lab.run()
    took_part = [1 in each.weights for each in record.rounds]
    back = took_part.index(True)
    assert back > 0
    assert all(took_part[back:])
    fresh = [each.attendance[1].fresh for each in record.rounds[back:]]
    assert fresh == [True] + [False] * (len(fresh) - 1)
    assert same_bits(record, repeated(record, epochs=5))


def test_a_round_begun_again_is_as_fresh_as_before(tmp_path):
    record = Lab(tmp_path, [(1, 11, "kill")]).run()
    assert [each.attendance[1].fresh for each in record.rounds] == [True, False, False]
    assert same_bits(record, repeated(record))


TOO_FEW = [
    ([(1, 13, "gone")], {"quorum": 2, "join_s": 0.5}, "quorum is 2"),
    # at one tail there is no way back, either
    ([(0, 9, "gone"), (1, 9, "gone")], {"micro": 1, "method": "splitfed2"}, "0 devices are done"),
]


@pytest.mark.parametrize(("hurts", "options", "words"), TOO_FEW)
def test_too_few_devices(tmp_path, hurts, options, words):
    lab = Lab(tmp_path, hurts, **options)
    with pytest.raises(QuorumLost, match=words):
        lab.run()
    assert "the server ends: round 0" in lab.said.get(0, "the server ends: round 0")


@pytest.mark.parametrize("after", [1, 2])
def test_a_restarted_server_goes_on(tmp_path, after):
    """The server ends in the middle of a round; a new one reads the checkpoint."""
    lab = Lab(tmp_path)

    async def all_of_it():
        first = lab.server
        lives = [asyncio.create_task(lab.live(at)) for at in range(len(SIZES))]
        running = asyncio.create_task(first.run())
        await until(lambda: first.round >= after)
        lab.server = None  # nobody is reached any more
        for link in first.lobby.links.values():
            link.close()
        running.cancel()
        await asyncio.wait([running])
        lab.server = lab.new_server()
        assert lab.server.round in (after - 1, after, after + 1)
        await lab.server.run()
        await asyncio.gather(*lives)

    asyncio.run(asyncio.wait_for(all_of_it(), LIMIT_S))
    assert same_bits(_record(lab.server, []), whole())


@pytest.mark.parametrize("message", [9, 11, 16])
def test_one_tail_in_a_drawn_order_and_a_lost_device(tmp_path, message):
    """There is no way back into it; the others go on."""
    record = Lab(tmp_path, [(1, message, "cut")], micro=1, method="splitfed2").run()
    assert all(torch.isfinite(value).all() for value in record.state.values())


# ---- stragglers


class Slow(Lab):
    """Device 1 stops before its first step until a test lets it go."""

    def __init__(self, folder, **options):
        self.gone_on, self.steps = False, 0
        super().__init__(folder, **options)

    def device(self, index):
        made = super().device(index)
        parts = made._parts

        def slowly(step, micro):
            if index == 1:
                self.steps += 1
                hold(lambda: self.gone_on)
            return parts(step, micro)

        made._parts = slowly
        return made


@pytest.mark.parametrize("method", ["pipelearn", "splitfed2", "split"])
def test_a_straggler_has_a_deadline(tmp_path, caplog, method):
    """It is left out of the round, with a sentence, and comes to a later one."""
    micro = 3 if method == "pipelearn" else 1
    lab = Slow(tmp_path, round_s=2.0, method=method, micro=micro, epochs=4)

    def let_go(record):
        lab.gone_on = True
        hold(lambda: 1 in lab.server.lobby.links)

    lab.server.report = let_go
    record = lab.run()
    assert sorted(record.rounds[0].weights) == [0]
    said = [line for line in caplog.messages if "device 1 is left out of round 0" in line]
    assert said[0].endswith("s (round_s)")
    if method == "pipelearn":
        assert any(1 in each.weights for each in record.rounds)
        assert same_bits(record, repeated(record, epochs=4))


def test_by_default_no_turn_takes_ten_times_as_long_as_the_others(tmp_path, monkeypatch):
    """At a tail in a drawn order, where nobody is done before the last step."""
    monkeypatch.setattr(waiting, "LEAST_S", 1.0)
    monkeypatch.setattr(waiting, "SLOWER", 0.1)
    lab = Lab(tmp_path, epochs=1, micro=1, method="splitfed2")
    lab.stall(lambda message: message.kind == "act" and message.step == 1)
    assert sorted(lab.run().rounds[0].weights) == [0]


def test_by_default_nobody_takes_ten_times_as_long_as_the_others(tmp_path, monkeypatch, caplog):
    """And whoever keeps three rounds in a row waiting is out."""
    monkeypatch.setattr(waiting, "LEAST_S", 1.0)
    monkeypatch.setattr(waiting, "SLOWER", 0.1)
    caplog.set_level("INFO")
    monkeypatch.setattr(waiting, "SAID_S", 0.3)
    lab = Lab(tmp_path, epochs=8)  # on a busy machine not every round's wait is long enough
    lab.stall(lambda message: message.kind == "act")

    def back():
        return 1 in lab.server.lobby.links or lab.server.members[1].out

    lab.server.report = lambda record: hold(back, 10)
    record = lab.run()
    assert [sorted(each.weights) for each in record.rounds] == [[0]] * 8
    assert "round 1 waits for device 1" in caplog.messages
    assert "device 1 has kept 3 rounds in a row waiting: it is out" in caplog.messages
    assert "it is out" in lab.said[1]


def test_a_round_has_no_deadline_before_its_quorum(tmp_path):
    lab = Slow(tmp_path, round_s=0.2, quorum=2)

    async def late():
        await until(lambda: lab.steps)
        await asyncio.sleep(1.0)
        lab.gone_on = True

    connect = lab.connect

    async def connecting(index, identity=None):
        lab.joined.add(asyncio.create_task(late()))
        return await connect(index, identity)

    lab.connect = connecting
    assert sorted(lab.run().rounds[0].weights) == [0, 1]


def test_whoever_comes_and_goes_moves_no_deadline(tmp_path):
    """Grace counts from the first loss of a round."""
    lab = Lab(tmp_path, grace_s=1.0, epochs=1)
    connect = lab.connect

    async def restless(index, identity=None):
        near = await connect(index, identity)
        if index == 1:
            receive = near.receive

            async def receiving(*kinds, **options):
                message = await receive(*kinds, **options)
                if message.kind == "start":
                    near.close()
                return message

            near.receive = receiving
        return near

    lab.connect = restless
    begun_s = time.monotonic()
    assert sorted(lab.run().rounds[0].weights) == [0]
    assert time.monotonic() - begun_s < 30


def test_an_interrupt_ends_all_parties():
    def evaluate(state):
        os.kill(os.getpid(), signal.SIGINT)
        return 0.0

    with pytest.raises(KeyboardInterrupt):
        trained([8, 8], epochs=500, evaluate=evaluate)
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("alkit")]
    assert not left


def test_a_fault_of_ours_ends_the_run(tmp_path, monkeypatch):
    async def broken(self, link, identity):
        raise ZeroDivisionError("a fault")

    lab = Lab(tmp_path)
    monkeypatch.setattr(lobby.Lobby, "_let_in", broken)
    with pytest.raises(ZeroDivisionError, match="a fault"):
        lab.run()


def test_a_device_that_went_between_two_rounds_is_waited_for_as_any_lost_one(tmp_path):
    lab = Lab(tmp_path, grace_s=0.2, join_s=50.0)

    def cut(record):
        if lab.server.round == 1:
            lab.hurts.append((1, lab.sent[1] + 1, "gone"))

    lab.server.report = cut
    begun_s = time.monotonic()
    assert [sorted(each.weights) for each in lab.run().rounds] == [[0, 1], [0], [0]]
    assert time.monotonic() - begun_s < 40


# ---- whom a server lets in


def hello(**changes):
    values = {"device": 0, "job": "", "network": "", "token": "a", "saved": []} | changes
    return Message("hello", values=values)


def answered(lab, messages, identity=None):
    """Return what a server says to who sends these messages."""

    async def all_of_it():
        near, far = pair()
        joining = asyncio.create_task(lab.server.join(far, identity))
        for message in messages:
            await near.send(message)
        await asyncio.wait_for(joining, 10)
        with pytest.raises(Refused) as found:
            await near.why()
        return str(found.value)

    return asyncio.run(all_of_it())


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([hello(device=2)], "no device 2"),
        ([hello(device=-1)], "no device -1"),
        ([hello(job="other")], "job 'other'"),
        ([Message("probe")], "where a hello was due"),
        ([hello(), Message("load")], "where a probe was due"),
        ([hello(saved=[[0, "1"]])], "a round and a cut"),
        ([hello(saved=[3])], "a round and a cut"),
    ],
)
def test_strangers_are_refused(tmp_path, messages, words):
    lab = Lab(tmp_path)
    assert words in answered(lab, messages)
    assert not lab.server.lobby.links


def test_a_device_with_anothers_certificate_or_none(tmp_path, caplog):
    lab = Lab(tmp_path)
    for _ in range(3):  # which is one line in the log
        assert "certificate is of device 1" in answered(lab, [hello()], identity=1)
    assert len([line for line in caplog.messages if "certificate is of" in line]) == 1
    assert "a hello was due" in answered(lab, [Message("probe")], identity=-1)
    assert not any(member.dropped for member in lab.server.members)


def test_two_programs_with_one_number_are_told(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(lobby, "TWIN_S", 0.2)
    lab = Lab(tmp_path)

    async def all_of_it():
        lives = [asyncio.create_task(lab.live(at)) for at in range(len(SIZES))]
        running = asyncio.create_task(lab.server.run())
        await until(lambda: 1 in lab.server.lobby.links)
        twin = lab.device(1)
        with pytest.raises(Refused, match="device 1 is here already, at device 1"):
            await twin.run(lambda: lab.connect(1))
        await running
        await asyncio.gather(*lives)

    lab.server.report = lambda record: time.sleep(0.2)
    asyncio.run(asyncio.wait_for(all_of_it(), LIMIT_S))
    assert same_bits(_record(lab.server, []), whole())
    assert any("here already" in line for line in caplog.messages)


def test_who_says_no_hello_is_sent_away(tmp_path, monkeypatch):
    monkeypatch.setattr("alkit.split.greeting.HELLO_S", 0.1)
    lab = Lab(tmp_path)

    async def silent():
        near, far = pair()
        await asyncio.wait_for(lab.server.join(far), 10)
        with pytest.raises(Lost):
            await near.receive("probe")

    asyncio.run(silent())
