"""Choices when devices come, and new ones when a link changes; the run stays a run of its plan."""

import copy

import pytest

from alkit.schedule.timeline import Interval
from alkit.split import Settings, train
from alkit.split.choosing import Choosing, goodput
from alkit.split.device import Device, Job
from alkit.split.planner import Workload
from alkit.split.profile import Link, Machine, Unit
from alkit.split.rounds import Attendance, RoundRecord
from alkit.split.server import Server
from alkit.split.stream import Stream
from alkit.split.times import Line
from alkit.split.train import run
from tests.unit.split.helpers import parts, same_bits, units

SIZES = [20, 17]


def machine(factor: float) -> Machine:
    """Two units; the first makes much of little."""
    first = Unit(Line(each=1.0), Line(each=1.0), 0.0, 100.0, 0.0, 10)
    return Machine((first, Unit(Line(each=9.0), Line(each=9.0), 0.0, 1.0, 0.0, 10))).scaled(factor)


def seen(up_bps: float, down_bps: float, size: int = 1 << 20) -> RoundRecord:
    """Return a record in which links carried something at these speeds."""
    intervals = [
        Interval(f"{lane} 0", "send", 0, 0, 0, 0.0, 8 * size / speed, size)
        for lane, speed in (("uplink", up_bps), ("downlink", down_bps))
    ]
    return RoundRecord(Attendance(), {}, {}, {}, {}, 1.0, intervals)


def choosing(**options) -> Choosing:
    return Choosing(machine(0.1), [Workload(10, 100, 50.0)], **options)


def test_a_fast_link_takes_work_to_the_server_and_given_speeds_count_more_than_probes():
    assert choosing().first(0, machine(100), Link(1e9, 1e9))[0] == 0
    assert choosing().first(0, machine(1), Link(1.0, 1.0))[0] == 2
    given = choosing(given=[Link(1.0, 1.0)])
    assert given.first(0, machine(1), Link(1e9, 1e9))[0] == 2


def test_a_changed_link_is_a_reason_to_choose_anew():
    own = choosing()
    own.first(0, machine(1), Link(1e6, 1e6))
    assert own.again(0, seen(1.05e6, 1e6)) is None
    assert own.again(0, seen(1.0, 1.0)) == (2, 1)
    assert own.links[0].up_bps == pytest.approx(1.0)
    assert own.again(1, seen(1.0, 1.0)) is None  # nothing is known of that one
    assert goodput(seen(5e6, 1e6, size=100), "uplink 0") is None  # too little to go by


def device(at, settings, **options):
    own = Stream(*parts(SIZES)[at], settings, at)
    return Device(at, Job(settings, copy.deepcopy(units()), own), **options)


class Scripted(Choosing):
    """Chooses what a test says."""

    def __init__(self, choices):
        self.choices, self.asked = choices, []

    def first(self, device, machine, link):
        self.asked.append(machine)
        return self.choices[device][0]

    def again(self, device, record):
        rounds = self.choices[device]
        at = next(iter(record.attendance.values())).steps.start // 3 + 1
        return rounds[at] if at < len(rounds) else None


@pytest.mark.parametrize("transport", ["local", "grpc"])
def test_choices_become_a_plan_that_can_be_repeated(transport):
    settings = Settings(4, (1, 1), epochs=3, batch=8, lr=0.1)
    script = Scripted({0: [(2, 3), (3, 2), (3, 2)], 1: [(1, 1), (1, 4), (4, 1)]})
    example = parts(SIZES)[0][0][:1]
    server = Server(units(), settings, SIZES, example=example, choosing=script, profile=1)
    record = run(server, [device(at, settings) for at in (0, 1)], transport)
    taken = [{at: (o.cut, o.micro) for at, o in one.items()} for one in record.plan]
    assert taken == [{0: (2, 3), 1: (1, 1)}, {0: (3, 2), 1: (1, 4)}, {0: (3, 2), 1: (4, 1)}]
    # another cut: nobody has its momentum; another number of micro-batches: all have
    fresh = [{at: o.fresh for at, o in one.items()} for one in record.plan]
    assert fresh == [{0: True, 1: True}, {0: True, 1: False}, {0: False, 1: True}]
    again = train(units(), parts(SIZES), epochs=3, batch=8, lr=0.1, plan=record.plan)
    assert same_bits(record, again)
    assert [len(own.units) for own in script.asked] == [4, 4]


class Moody(Choosing):
    """Would choose otherwise each time it is asked, as measured times do."""

    made = 0

    def _plan(self, device):
        Moody.made += 1
        return [(2, 3), (1, 2), (3, 4)][Moody.made % 3]

    def again(self, device, record):
        return None


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_restarted_server_keeps_its_plan(tmp_path, rounds):
    """Also in the first round: the choice is on disk before anybody acts on it."""
    Moody.made = 0
    settings = Settings(4, (1, 1), epochs=3, batch=8, lr=0.1, join_s=30, grace_s=30)

    def made():
        own = Machine((machine(0.1).units[0],) * 4)
        choosing = Moody(own, [Workload(8, size, 432.0) for size in SIZES])
        options = {"example": parts(SIZES)[0][0][:1], "path": tmp_path / "server.pt"}
        return Server(units(), settings, SIZES, choosing=choosing, profile=1, **options)

    first = made()

    def end(*_):
        raise ConnectionError("the end of the server's process")

    if rounds:
        first.report = end
    else:
        average = first._averaged
        first._averaged = lambda done: end() if done else average(done)
    with pytest.raises(ConnectionError):
        run(first, [device(at, settings, retries=0) for at in (0, 1)])
    chosen = [member.choice for member in first.members]
    assert len(set(chosen)) == 2
    second = made()
    record = run(second, [device(at, settings, retries=0) for at in (0, 1)])
    assert [member.choice for member in second.members] == chosen
    assert [(one[0].cut, one[1].cut) for one in record.plan] == [(chosen[0][0], chosen[1][0])] * 3
    assert Moody.made == 2
