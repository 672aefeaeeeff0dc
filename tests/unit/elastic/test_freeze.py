"""Rules of freezing: the published tables, and what each rule does with norms."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    rule = policy("schedule", alpha=alpha)
    assert [0, *(rule(Observation(layers, 0, t)) for t in range(1, len(expected)))] == expected


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.floats(0.01, 0.99), st.integers(1, 24))
def test_closed_form_and_recurrence(alpha, layers):
    u = 0.0
    for t in range(1, 12):
        u += alpha * (layers - u)
        assert cap(layers, alpha, t) == math.ceil(u - 1e-9)


GRADNORM = [  # frozen, T, the last norms, how many are frozen then
    (0, 1, (9.0, 8.0, 1.0, 5.0, *[7.0] * 8), 3),  # the argmin's layer, counted
    (0, 1, (*[9.0] * 8, 1.0, 9.0, 9.0, 9.0), 4),  # the cap at T = 1
    (3, 2, (0.0, 0.0, 0.0, 0.1, *[7.0] * 8), 4),  # the lowest active layer is the calmest
    (1, 2, (0.0, *[9.0] * 10, 1.0), 5),  # 1 + 11 / 3, rounded up; the schedule has 7 by now
]


@pytest.mark.parametrize(("frozen", "t", "norms", "expected"), GRADNORM)
def test_gradnorm_freezes_up_to_the_smallest_norm_or_a_share_of_what_is_active(
    frozen, t, norms, expected
):
    rule = policy("gradnorm", alpha=1 / 3)
    assert rule(Observation(12, frozen, t, (norms,))) == expected
    assert rule(Observation(12, frozen, t)) == frozen


def test_gradnorm_is_the_schedule_where_the_top_layer_is_always_the_calmest():
    rule, found = policy("gradnorm", alpha=1 / 3), [0]
    for t in range(1, 10):
        norms = (*[0.0] * found[-1], *[9.0] * (11 - found[-1]), 1.0)
        found.append(rule(Observation(12, found[-1], t, (norms[:12],))))
    assert found == PUBLISHED[1 / 3][0]


def test_a_rule_of_one_s_own_is_kept_monotone_and_bounded():
    rule = policy(lambda seen: seen.evaluation)
    assert [rule(Observation(12, 5, t)) for t in (1, 7, 99)] == [5, 7, 12]
