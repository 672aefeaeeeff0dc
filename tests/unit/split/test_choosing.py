"""Choices when devices come; a server that is started again keeps them."""

import copy

import pytest

from alkit.split import Settings
from alkit.split.choosing import Choosing
from alkit.split.device import Device, Job
from alkit.split.planner import Workload
from alkit.split.profile import Link, Machine, Unit
from alkit.split.server import Server
from alkit.split.stream import Stream
from alkit.split.times import Line
from alkit.split.train import run
from tests.unit.split.helpers import parts, units

SIZES = [20, 17]


def machine(factor: float) -> Machine:
    """Two units; the first makes much of little."""
    first = Unit(Line(each=1.0), Line(each=1.0), 0.0, 100.0, 0.0, 10)
    return Machine((first, Unit(Line(each=9.0), Line(each=9.0), 0.0, 1.0, 0.0, 10))).scaled(factor)


def choosing(**options) -> Choosing:
    return Choosing(machine(0.1), [Workload(10, 100, 50.0)], **options)


def test_a_fast_link_takes_work_to_the_server_and_given_speeds_count_more_than_probes():
    assert choosing().choose(0, machine(100), Link(1e9, 1e9))[0] == 0
    assert choosing().choose(0, machine(1), Link(1.0, 1.0))[0] == 2
    given = choosing(given=Link(1.0, 1.0))
    assert given.choose(0, machine(1), Link(1e9, 1e9))[0] == 2


def device(at, settings, **options):
    own = Stream(*parts(SIZES)[at], settings, at)
    return Device(at, Job(settings, copy.deepcopy(units()), own), **options)


class Moody(Choosing):
    """Would choose otherwise each time it is asked, as measured times do."""

    made = 0

    def choose(self, device, machine, probed):
        Moody.made += 1
        return [(2, 3), (1, 2), (3, 4)][Moody.made % 3]


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_restarted_server_keeps_its_choices(tmp_path, rounds):
    """Also in the first round: the choice is on disk before anybody acts on it."""
    Moody.made = 0
    settings = Settings(4, (1, 1), epochs=3, batch=8, lr=0.1, join_s=30)

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
    taken = [(own.attendance[0].cut, own.attendance[1].cut) for own in record.rounds]
    assert taken == [(chosen[0][0], chosen[1][0])] * 3
    assert Moody.made == 2
