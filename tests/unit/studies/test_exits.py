"""Calibration of exits; notebook 09 checks scores and costs by hand."""

import pytest
import torch

from studies.al import exits


@pytest.mark.parametrize("made", [3, 0.03])  # AL's decoded codes differ by little: below 0.1
def test_calibration_finds_the_temperature_that_made_the_labels(made):
    generator = torch.Generator().manual_seed(0)
    scores = 4 / 3 * made * torch.randn(1, 4000, 5, generator=generator)
    labels = torch.multinomial((scores[0] / made).softmax(1), 1, generator=generator)[:, 0]
    assert exits.calibrated(scores, labels)[0] == pytest.approx(made, rel=0.15)
