"""Rules of freezing: the published tables, and what each rule does with norms."""

import math

import pytest

from alkit.elastic.freeze import Observation, cap, policy

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
    rule, frozen, found = policy("schedule", alpha=alpha), 0, [0]
    for t in range(1, len(expected)):
        frozen = rule(Observation(layers, frozen, t))
        found.append(frozen)
    assert found == expected


@pytest.mark.parametrize("alpha", [0.07, 1 / 5, 1 / 3, 1 / 2, 0.9])
@pytest.mark.parametrize("layers", [1, 12, 24])
def test_closed_form_and_recurrence(alpha, layers):
    u = 0.0
    for t in range(1, 12):
        u += alpha * (layers - u)
        assert cap(layers, alpha, t) == math.ceil(u - 1e-9)


def test_gradnorm_freezes_up_to_the_smallest_norm():
    rule = policy("gradnorm", alpha=1 / 3)
    norms = (9.0, 8.0, 1.0, 5.0, *[7.0] * 8)
    assert rule(Observation(12, 0, 1, (norms,))) == 3  # the argmin's layer, counted
    # the cap at T = 1 is 4
    assert rule(Observation(12, 0, 1, ((*[9.0] * 8, 1.0, 9.0, 9.0, 9.0),))) == 4
    # the lowest active layer has the smallest norm: it is frozen, not nothing
    assert rule(Observation(12, 3, 2, ((0.0, 0.0, 0.0, 0.1, *[7.0] * 8),))) == 4
    assert rule(Observation(12, 3, 2)) == 3


def test_no_rule_freezes_more_than_its_share_of_what_is_still_active():
    """The recurrence counts from the layers that are frozen, not from what could have been."""
    calm_below, calm_above = (0.1, *[9.0] * 11), (0.0, *[9.0] * 10, 1.0)
    rule = policy("gradnorm", alpha=1 / 3)
    assert rule(Observation(12, 0, 1, (calm_below,))) == 1
    # 1 + 11 / 3, rounded up; the schedule has 7 by now
    assert rule(Observation(12, 1, 2, (calm_below, calm_above))) == 5


def test_gradnorm_is_the_schedule_where_the_top_layer_is_always_the_calmest():
    rule, frozen, found = policy("gradnorm", alpha=1 / 3), 0, [0]
    for t in range(1, 10):
        norms = (*[0.0] * frozen, *[9.0] * (11 - frozen), 1.0)
        frozen = rule(Observation(12, frozen, t, (norms[:12],)))
        found.append(frozen)
    assert found == PUBLISHED[1 / 3][0]


@pytest.mark.parametrize("name", ["none", "schedule", "gradnorm"])
def test_every_rule_is_monotone_and_bounded(name):
    rule, frozen, norms = policy(name, 1 / 3), 0, ()
    for t in range(1, 15):
        norms = (*norms, tuple(1.0 + (layer * 7 + t * 3) % 5 for layer in range(12)))
        now = rule(Observation(12, frozen, t, norms, t / 15))
        assert frozen <= now <= 12
        frozen = now
