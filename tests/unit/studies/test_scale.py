"""The model of the published scale study: closed forms, and constants that come back."""

import pandas as pd
import pytest

from studies import scale
from studies.scale import Machine

MACHINE = Machine(2.0, 5.0, 4.0, 0.9, 0.05, 1.5)
EMBEDDING = 2.0 + 4.0 * scale.TENSORS


def test_steps_are_sums_and_more_devices_hide_something():
    block = 2.0 + (5.0 + 2.0) + 4.0
    one = scale.step_ms(MACHINE, "bp", "contiguous", 1, 3)
    assert one == pytest.approx(EMBEDDING + 3 * block)
    spread = scale.step_ms(MACHINE, "bp", "round_robin", 3, 3)
    assert spread == pytest.approx(one + 2 * 1.5)  # hops delay the forwards
    expected = EMBEDDING + 4 * (2.0 + 5.0 + 4.0)
    assert scale.step_ms(MACHINE, "al_fm", "round_robin", 1, 4) == pytest.approx(expected)
    one, two = (scale.step_ms(MACHINE, "al_fm", "round_robin", gpus, 4) for gpus in (1, 2))
    assert two < one


def test_the_study_has_all_rows():
    rows = scale.study()
    assert len(rows) == 4 * 29
    assert set(scale.FITTED) <= set(zip(rows.gpus, rows.layers, strict=True))
    assert rows.ms.min() > 15


def test_constants_come_back():
    cases = [("bp", "round_robin", 2, 2), ("bp", "contiguous", 1, 3), ("bp", "contiguous", 1, 1)]
    cases += [("al_fm", "round_robin", g, n) for g, n in ((1, 2), (2, 2), (2, 4), (3, 3))]
    rows = pd.DataFrame(cases, columns=["method", "placement", "gpus", "layers"])
    rows["ms"] = [scale.step_ms(MACHINE, *case) for case in cases]
    found = scale.predictions(scale.fit(rows), rows)
    assert found.error.abs().max() < 0.01
    assert found.fitted.sum() == 3  # (2, 2) twice and (1, 1)
