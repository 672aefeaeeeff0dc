"""Layouts and rules of freezing: the published tables, and what each rule does with norms."""

from itertools import product
from statistics import pvariance

import pytest
import torch
from torch import nn

from alkit.elastic.encoder import BertSizes, ViTSizes, bert_classifier, vit_classifier
from alkit.elastic.freeze import Observation, cap, policy
from alkit.elastic.layout import Planner, minmax, table_micro
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


def test_stages_over_epochs_as_published():
    own = {"sizes": vit_sizes(1000), "devices": 8, "batch": 320, "partition": filled}
    planner = Planner(settings=Settings(), **own)
    expected = {1 / 5: "8844422221", 1 / 4: "8844222111", 1 / 3: "8842211111"}
    expected |= {2 / 5: "8442111111", 1 / 2: "8421111111"}
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
    sizes = {vit: (86.567656, 0.742656), base: (109.483778, 23.837184)}
    for network, (total, first) in (sizes | {large: (335.143938, 31.782912)}).items():
        assert sum(network.sizes()) == pytest.approx(total, abs=1e-9)
        assert network.sizes()[0] == pytest.approx(first, abs=1e-9)
    assert vit.sizes()[1:3] == pytest.approx([ATTENTION, MLP])
    four = Network.from_blocks([nn.Linear(2, 2) for _ in range(4)], nn.functional.mse_loss)
    assert four.layers == 2
    assert [vit.layer_of(unit) for unit in (0, 24, 25)] == [None, 11, None]
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
    # the largest divisor of 40 that is at most 16; as many stages as two active units can have
    assert tiny().planner(Settings(), devices=2, batch=40).at(0).micro == 10
    assert tiny().planner(Settings(budget=1e-9), devices=8, batch=64).at(4).stages == 2


PUBLISHED = {  # alpha: (12 layers, 24 layers), epochs 0 to 9
    1 / 5: ([0, 3, 5, 6, 8, 9, 9, 10, 10, 11], [0, 5, 9, 12, 15, 17, 18, 19, 20, 21]),
    1 / 4: ([0, 3, 6, 7, 9, 10, 10, 11, 11, 12], [0, 6, 11, 14, 17, 19, 20, 21, 22, 23]),
    1 / 3: ([0, 4, 7, 9, 10, 11, 11, 12, 12, 12], [0, 8, 14, 17, 20, 21, 22, 23, 24, 24]),
    2 / 5: ([0, 5, 8, 10, 11, 12, 12], [0, 10, 16, 19, 21, 23, 23, 24, 24, 24]),
    1 / 2: ([0, 6, 9, 11, 12, 12, 12], [0, 12, 18, 21, 23, 24, 24]),
}


@pytest.mark.parametrize("alpha", PUBLISHED)
@pytest.mark.parametrize("layers", [12, 24])
def test_the_published_schedules(alpha, layers):
    expected = PUBLISHED[alpha][layers // 24]
    assert [cap(layers, alpha, t) for t in range(len(expected))] == expected
    rule = policy("schedule", alpha=alpha)
    assert [0, *(rule(Observation(layers, 0, t)) for t in range(1, len(expected)))] == expected


GRADNORM = [  # frozen, T, the last norms, how many are frozen then
    (0, 1, (9.0, 8.0, 1.0, 5.0, *[7.0] * 8), 3),  # the argmin's layer, counted
    (0, 1, (*[9.0] * 8, 1.0, 9.0, 9.0, 9.0), 4),  # the cap at T = 1
    (3, 2, (0.0, 0.0, 0.0, 0.1, *[7.0] * 8), 4),  # the lowest active layer is the calmest
    (1, 2, (0.0, *[9.0] * 10, 1.0), 5),  # 1 + 11 / 3, rounded up; the schedule has 7 by now
]


@pytest.mark.parametrize(("frozen", "t", "norms", "expected"), GRADNORM)
def test_gradnorm_freezes_up_to_the_smallest_norm_or_a_share(frozen, t, norms, expected):
    rule = policy("gradnorm", alpha=1 / 3)
    assert rule(Observation(12, frozen, t, (norms,))) == expected
    assert rule(Observation(12, frozen, t)) == frozen


def test_a_rule_of_one_s_own_is_kept_monotone_and_bounded():
    rule = policy(lambda seen: seen.evaluation)
    assert [rule(Observation(12, 5, t)) for t in (1, 7, 99)] == [5, 7, 12]
