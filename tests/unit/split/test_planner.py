"""The planner against brute force, and what the profiler finds of a real network."""

import itertools

import pytest
import torch

from alkit.split.networks import build
from alkit.split.planner import Workload, candidates, times_at
from alkit.split.profile import Link, Unit, measure
from alkit.split.schedule import split_sizes
from alkit.split.times import Line, iteration_s


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


def test_profile_of_a_real_network():
    units = build("VGG5")
    x, y = torch.randn(20, 3, 32, 32), torch.randint(10, (20,))
    found = measure(units, x, y, repeats=2)
    assert [own.output_bytes / 1024 for own in found] == [32, 16, 16, 0.5, 0]
    assert all(own.forward.at(20) > 0 and own.backward.at(20) > 0 for own in found)
    assert found[0].parameter_bytes == 4 * (960 + 64) + 8
