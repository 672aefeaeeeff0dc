"""The planner: hand-made tables with a known best, and brute force."""

import itertools

import pytest
import torch

from alkit.split.networks import build
from alkit.split.planner import Workload, candidates, times_at
from alkit.split.profile import Link, Unit, measure
from alkit.split.schedule import split_sizes
from alkit.split.times import Line, iteration_s


def unit(forward, backward, out, weights) -> Unit:
    return Unit(Line(each=forward), Line(each=backward), 0.0, out, weights)


def machine(factor=1.0) -> list[Unit]:
    """Three units; the second shrinks its output to a hundredth."""
    units = unit(1, 1, 1000.0, 100), unit(1, 1, 10.0, 100), unit(4, 4, 1.0, 1000)
    return [each.scaled(factor) for each in units]


WORKLOAD = Workload(batch=10, samples=100, input_bytes=1000.0)
FAST, SLOW = Link(1e12, 1e12), Link(1.0, 1.0)


@pytest.mark.parametrize(
    ("device", "server", "link", "cut"),
    [
        (100, 1, FAST, 0),  # a fast server on a fast link takes everything
        (1, 1, SLOW, 3),  # a slow link leaves everything on the device
        (1, 0.5, Link(200.0, 200.0), 2),  # half of the work for each, where little is sent
    ],
)
def test_the_best_cut(device, server, link, cut):
    found = candidates(machine(device), machine(server), link, WORKLOAD)[0]
    assert found.cut == cut
    assert (found.micro > 1) == (cut == 2)


def test_all_candidates_are_there_and_sorted():
    found = candidates(machine(2), machine(1), Link(1e4, 1e4), WORKLOAD)
    cuts = {(each.cut, each.micro) for each in found}
    assert cuts == {(0, 1), (3, 1)} | set(itertools.product((1, 2), (1, 2, 3, 4, 5, 10)))
    assert [each.epoch_s for each in found] == sorted(each.epoch_s for each in found)


@pytest.mark.parametrize("seed", range(10))
def test_brute_force(seed):
    draw = torch.Generator().manual_seed(seed)

    def number() -> float:
        return float(torch.rand((), generator=draw))

    def line() -> Line:
        return Line(number() / 50, number())

    units = [
        Unit(line(), line(), number() / 10, 100 * number(), int(1000 * number())) for _ in range(4)
    ]
    factor = 1 + 5 * number()
    device, server = [each.scaled(factor) for each in units], units
    link = Link(1000 * number(), 1000 * number())
    workload = Workload(batch=12, samples=30, input_bytes=50.0, averages=2)

    def epoch(cut: int, micro: int) -> float:
        times = times_at(device, server, link, workload, cut)
        whole = sum(iteration_s(times, split_sizes(size, micro)) for size in (12, 12, 6))
        weights = 8 * sum(own.parameter_bytes for own in units[:cut])
        return whole + 2 * weights * (1 / link.up_bps + 1 / link.down_bps)

    pairs = [(0, 1), (4, 1), *itertools.product((1, 2, 3), range(1, 13))]
    fastest = min(pairs, key=lambda pair: epoch(*pair))
    chosen = candidates(device, server, link, workload)[0]
    assert chosen.epoch_s == pytest.approx(epoch(*fastest))


def test_contention_slows_the_server():
    loads = [Workload(10, 100, 1.0, contention=each) for each in (1, 2)]
    alone, crowded = (times_at(machine(), machine(), FAST, load, 1) for load in loads)
    assert crowded.server.each == 2 * alone.server.each


def test_profile_of_a_real_network():
    units = build("VGG5")
    x, y = torch.randn(20, 3, 32, 32), torch.randint(10, (20,))
    found = measure(units, x, y, repeats=2)
    assert [own.output_bytes / 1024 for own in found] == [32, 16, 16, 0.5, 0]
    assert all(own.forward.at(20) > 0 and own.backward.at(20) > 0 for own in found)
    assert found[0].parameter_bytes == 4 * (960 + 64) + 8
