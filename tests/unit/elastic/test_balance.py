"""Cuts: the published fixtures, and min-max against greedy."""

from itertools import product
from statistics import pvariance

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from alkit.elastic.encoder import BertSizes, ViTSizes, bert_classifier, vit_classifier
from alkit.elastic.freeze import cap
from alkit.elastic.layout import Planner, compress, loads, minmax, table_micro
from alkit.elastic.network import Network
from alkit.elastic.settings import Settings


def greedy(sizes: list[float], stages: int) -> list[int]:
    """The published rule, which may leave empty stages: below mean + variance of what is left."""
    counts: list[int] = []
    assigned, total = 0, sum(sizes)
    for k in range(stages):
        rest = sizes[assigned:]
        mean = total / (stages - k)
        variance = pvariance(rest) / (stages - k) if rest else 0.0
        load, own = 0.0, 0
        while own < len(rest) and (k == stages - 1 or load + rest[own] < mean + variance):
            load += rest[own]
            total -= rest[own]
            own += 1
        counts.append(own)
        assigned += own
    return counts


def filled(sizes: list[float], stages: int) -> list[int]:
    counts = greedy(sizes, stages)
    return counts if all(counts) else minmax(sizes, stages)


ATTENTION, MLP, NORM = 2.363904, 4.723968, 0.001536


def vit_sizes(classes: int, frozen: int = 0) -> list[float]:
    head = (768 * classes + classes) / 1e6
    first = [] if frozen else [0.742656]
    return [*first, *[ATTENTION, MLP] * (12 - frozen), NORM, head]


def bert_sizes(layers: int, frozen: int = 0) -> list[float]:
    if layers == 24:
        first = [] if frozen else [31.782912]
        return [*first, *[4.200448, 8.395776] * (24 - frozen), 0.00205]
    first = [] if frozen else [23.837184]
    return [*first, *[ATTENTION, MLP] * (12 - frozen), 0.590592, 0.001538]


FIXTURES = [
    (
        vit_sizes(100),
        8,
        [4, 2, 3, 3, 3, 3, 4, 5],
        [10.194432, 7.087872, 11.81184, 9.451776, 11.81184, 9.451776, 14.175744, 11.890276],
    ),
    (vit_sizes(1000), 4, [7, 6, 6, 8], [22.006272, 21.263616, 21.263616, 22.034152]),
    (vit_sizes(1000, 7), 4, [3, 2, 2, 5], [9.451776, 7.087872, 7.087872, 12.582376]),
    (vit_sizes(1000, 9), 2, [3, 5], [9.451776, 12.582376]),
    (
        bert_sizes(24),
        8,
        [2, 6, 6, 6, 7, 7, 8, 8],
        [35.98336, 37.788672, 37.788672, 37.788672, 46.184448, 41.98912, 50.384896, 46.186498],
    ),
    (
        bert_sizes(12),
        8,
        [0, 0, 0, 1, 6, 6, 6, 8],
        [0, 0, 0, 23.837184, 21.263616, 21.263616, 21.263616, 21.855746],
    ),
]


@pytest.mark.parametrize(("sizes", "stages", "counts", "expected"), FIXTURES)
def test_greedy_is_the_published_rule(sizes, stages, counts, expected):
    assert greedy(sizes, stages) == counts
    assert loads(sizes, counts) == pytest.approx(expected, abs=5e-7)


LARGEST = [  # sizes, stages, greedy, min-max, both in millions
    (vit_sizes(100), 8, 14.176, 11.890),
    (bert_sizes(24), 8, 50.385, 46.184),
    (bert_sizes(12), 8, 23.837, 23.837),
    (bert_sizes(12), 4, 30.925, 28.351),
    (bert_sizes(12), 2, 61.64, 54.931),
]


@pytest.mark.parametrize(("sizes", "stages", "of_greedy", "of_minmax"), LARGEST)
def test_largest_stages(sizes, stages, of_greedy, of_minmax):
    assert max(loads(sizes, greedy(sizes, stages))) == pytest.approx(of_greedy, abs=6e-3)
    assert max(loads(sizes, minmax(sizes, stages))) == pytest.approx(of_minmax, abs=6e-3)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0.01, 50), min_size=1, max_size=30), st.integers(1, 8))
def test_minmax_is_never_worse(sizes, stages):
    if stages > len(sizes):
        with pytest.raises(ValueError, match="groups"):
            minmax(sizes, stages)
        return
    counts = minmax(sizes, stages)
    assert sum(counts) == len(sizes)
    assert all(counts)
    assert max(loads(sizes, counts)) <= max(loads(sizes, greedy(sizes, stages))) * (1 + 1e-9)


THRESHOLDS = [  # the most frozen layers with 8, 4 and 2 stages
    (vit_sizes, 1000, 12, (4, 8, 10)),
    (bert_sizes, 24, 24, (8, 16, 20)),
    (bert_sizes, 12, 12, (0, 5, 8)),
]


@pytest.mark.parametrize(("sizes_of", "what", "layers", "last"), THRESHOLDS)
def test_compression_thresholds_of_the_greedy_rule(sizes_of, what, layers, last):
    budget = max(loads(sizes_of(what), greedy(sizes_of(what), 8)))
    stages = 8
    for frozen in range(layers + 1):
        if frozen:
            stages = compress(sizes_of(what, frozen), stages, budget, greedy)
        expected = next((k for k, most in zip((8, 4, 2), last, strict=True) if frozen <= most), 1)
        assert stages == expected, frozen


def test_stages_over_epochs_as_published():
    planner = Planner(
        settings=Settings(), sizes=vit_sizes(1000), devices=8, batch=320, partition=filled
    )
    expected = {
        1 / 5: "8844422221",
        1 / 4: "8844222111",
        1 / 3: "8842211111",
        2 / 5: "8442111111",
        1 / 2: "8421111111",
    }
    for alpha, stages in expected.items():
        layout, found = None, ""
        for epoch in range(10):
            layout = planner.at(cap(12, alpha, epoch), layout)
            found += str(layout.stages)
        assert found == stages


def test_sizes_of_the_published_networks():
    with torch.device("meta"):
        vit = vit_classifier(ViTSizes(classes=1000))
        base = bert_classifier(BertSizes(layers=12), 2)
        large = bert_classifier(BertSizes(24, 1024, 16, 4096), 2)
    for network, total, first in (
        (vit, 86.567656, 0.742656),
        (base, 109.483778, 23.837184),
        (large, 335.143938, 31.782912),
    ):
        assert sum(network.sizes()) == pytest.approx(total, abs=1e-9)
        assert network.sizes()[0] == pytest.approx(first, abs=1e-9)
    assert vit.sizes()[1:3] == pytest.approx([ATTENTION, MLP])
    assert large.sizes()[1:3] == pytest.approx([4.200448, 8.395776])


def tiny() -> Network:
    units = [nn.Linear(4, 4) for _ in range(11)]
    return Network(units, 4, nn.functional.mse_loss)


@pytest.mark.parametrize(("pipe", "dp", "cache"), [*product([False, True], repeat=3)])
def test_plans_of_all_switches(pipe, dp, cache):
    settings = Settings(stages=2, micro=2, pipe=pipe, dp=dp, cache=cache)
    planner = tiny().planner(settings, devices=4, batch=8)
    whole = planner.at(0)
    assert (whole.counts, whole.start, whole.replicas) == ((5, 6), 0, 2)
    late = planner.at(3, whole)
    assert late.bounds[-1][1] == 11
    found = late.stages, late.start, late.replicas, late.micro, late.counts
    if pipe:
        assert found[:4] == (1, 7, 4 if dp else 2, 1)
    else:
        assert found == (2, 0, 2, 2, (5, 6))


def test_batches_per_replica_and_micro_batches():
    late = tiny().planner(Settings(growing=True), devices=2, batch=8).at(4)
    assert (late.replicas, late.batch) == (2, 16)
    assert [table_micro(k) for k in (8, 4, 2, 1)] == [16, 16, 16, 4]
    planner = tiny().planner(Settings(), devices=2, batch=40)
    assert planner.at(0).micro == 10  # the largest divisor of 40 that is at most 16
