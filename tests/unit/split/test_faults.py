"""Lost links, killed devices and restarted servers: training ends, in known bits."""

import asyncio
import os
import signal
import threading
import time

import pytest

from alkit.split import lobby
from alkit.split.link import Lost, Refused, pair
from alkit.split.server import DeviceLost
from alkit.split.train import _record
from alkit.split.wire import Message
from tests.unit.split.helpers import same_bits, trained
from tests.unit.split.lab import LIMIT_S, SIZES, Lab, until, whole

# hello and 6 probes; then 9 acts (device 1: 7) and a done for each of 3 rounds
MESSAGES = [8, 9, 10, 11, 13, 15, 16, 18, 25, 27, 36]
SEVERAL = [(0, 12, "cut"), (1, 13, "kill"), (0, 25, "kill"), (1, 40, "cut"), (1, 41, "cut")]
HURTS = [
    *(([(1, at, way)], {}) for at in MESSAGES for way in ("cut", "kill")),
    (SEVERAL, {}),
    # running statistics of a round that is cut off are forgotten
    *(([(1, at, "cut")], {"norm": "batch"}) for at in (9, 11, 14)),
    # central and federated devices; a tail that is handed on
    *(([(1, at, "cut"), (0, at, "kill")], {"cut": 0, "micro": 1}) for at in (8, 11)),
    *(([(1, at, "cut"), (0, at, "kill")], {"cut": 4, "micro": 1}) for at in (8, 11)),
    *(([(1, at, "cut")], {"micro": 1, "method": "split"}) for at in (9, 11, 16)),
]


@pytest.mark.parametrize(("hurts", "options"), HURTS, ids=str)
def test_all_come_back_and_nothing_has_happened(tmp_path, hurts, options):
    least = {"least": 2} if "norm" in options else {}
    assert same_bits(Lab(tmp_path, hurts, **options, **least).run(), whole(**options))


def test_a_round_begun_again_is_as_fresh_as_before(tmp_path):
    record = Lab(tmp_path, [(1, 11, "kill")]).run()
    assert [each.attendance[1].fresh for each in record.rounds] == [True, False, False]


GONE = [
    ([(1, 1, "gone")], {}, "device 1 is away for more than 0.5 s"),
    ([(1, 13, "gone")], {}, "device 1 is away for more than 0.5 s"),
    ([(1, 11, "gone")], {"micro": 1, "method": "split"}, "device 1 is away"),
    # at one tail in a drawn order there is no way back
    ([(1, 9, "cut")], {"micro": 1, "method": "splitfed2"}, "device 1 is lost.*no way back"),
]


@pytest.mark.parametrize(("hurts", "options", "words"), GONE)
def test_a_device_that_stays_away_ends_the_run(tmp_path, hurts, options, words):
    lab = Lab(tmp_path, hurts, join_s=0.5, **options)
    with pytest.raises(DeviceLost, match=words):
        lab.run()
    assert "the server ends: round 0" in lab.said.get(0, "the server ends: round 0")


def test_a_device_whose_steps_are_done_is_not_waited_for(tmp_path):
    """The second one has four steps, the first one six; a round is a step."""
    hurts = [(1, 7 + 4 * 2 + 1, "gone")]
    lab = Lab(tmp_path, hurts, epochs=2, batch=9, micro=1, aggregate_every=1, join_s=0.5)

    def part(record):
        if lab.server.round == 4:
            link = lab.server.members[1].link
            lab.server.running.get_loop().call_soon_threadsafe(link.close)

    lab.server.report = part
    assert [sorted(own.weights) for own in lab.run().rounds] == [[0, 1]] * 4 + [[0]] * 2


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


def test_who_comes_as_the_server_is_ended_does_not_keep_it_alive(tmp_path):
    async def ended_after(steps):
        """Whether the end was heeded; the device comes, and so many steps of the loop later..."""
        server = Lab(tmp_path).server
        waits = asyncio.create_task(server._there(server.members[:1]))
        await asyncio.sleep(0.01)
        server.members[0].link = object()
        await server.lobby._wake()
        for _ in range(steps):
            await asyncio.sleep(0)
        too_late = waits.done() or not waits.cancel()
        await asyncio.wait([waits])
        return too_late or waits.cancelled()

    assert all(asyncio.run(ended_after(steps)) for steps in range(8))


def test_an_interrupt_ends_all_parties():
    def evaluate(state):
        os.kill(os.getpid(), signal.SIGINT)
        return 0.0

    with pytest.raises(KeyboardInterrupt):
        trained([8, 8], epochs=500, evaluate=evaluate)
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("alkit")]
    assert not left


def test_a_fault_of_ours_ends_the_run(tmp_path, monkeypatch):
    async def broken(self, link):
        raise ZeroDivisionError("a fault")

    lab = Lab(tmp_path)
    monkeypatch.setattr(lobby.Lobby, "_let_in", broken)
    with pytest.raises(ZeroDivisionError, match="a fault"):
        lab.run()


# ---- whom a server lets in


def hello(**changes):
    values = {"device": 0, "job": "", "token": "a", "saved": []} | changes
    return Message("hello", values=values)


def answered(lab, messages):
    """Return what a server says to who sends these messages."""

    async def all_of_it():
        near, far = pair()
        joining = asyncio.create_task(lab.server.join(far))
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
    ],
)
def test_strangers_are_refused(tmp_path, messages, words):
    lab = Lab(tmp_path)
    assert words in answered(lab, messages)
    assert not lab.server.lobby.links


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
