"""Noise is a share of the training labels, a function of the seed, and nowhere else."""

import pytest
import torch

from alkit.data import datasets
from studies.al.label_noise import with_label_noise


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_share_of_the_training_labels_is_drawn_anew_by_the_seed(share):
    data = datasets.load("digits")
    noisy, again, other = (with_label_noise(data, share, seed=seed) for seed in (0, 0, 1))
    changed = (noisy.train.y != data.train.y).float().mean().item()
    assert changed == pytest.approx(share * 0.9, abs=0.04)  # one in ten is drawn right
    assert torch.equal(noisy.train.x, data.train.x)
    assert noisy.test is data.test
    assert noisy.validation is data.validation
    assert torch.equal(noisy.train.y, again.train.y)
    assert torch.equal(noisy.train.y, other.train.y) == (share == 0)
    assert (f"{share:.0%} of the training labels drawn at random" in noisy.note) == (share > 0)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_is_from_0_to_1(share):
    with pytest.raises(ValueError, match="give a number from 0 to 1"):
        with_label_noise(datasets.load("digits"), share)
