"""Noise: a function of its key, and orthogonal rows whose covariance is exact."""

import pytest
import torch

from alkit.dtp import closed_form
from alkit.dtp.noise import Noise, noise_for
from tests.unit.dtp.helpers import linear_block


@pytest.mark.parametrize("kind", ["normal", "orthogonal"])
def test_noise_is_a_function_of_its_key(kind):
    def drawn(*key):
        noise = Noise(noise_for(*key), kind)
        return [noise.draw(torch.zeros(5, 3), 0.5, place) for place in "xyx"]

    first, again = drawn(0, 1, 2), drawn(0, 1, 2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[2])
    for other in ((1, 1, 2), (0, 2, 2), (0, 1, 3)):
        assert not torch.equal(drawn(*other)[0], first[0])


@pytest.mark.parametrize("size", [1, 6, 8, 100])
def test_a_round_has_exactly_the_covariance(size):
    noise, like = Noise(noise_for(0, 0, 0), "orthogonal"), torch.zeros(4, size).double()
    rows = 1 << (size - 1).bit_length()
    drawn = torch.cat([noise.draw(like, 0.3, "x") for _ in range(-(-rows // 4))])[:rows]
    assert torch.allclose(drawn.T @ drawn / rows, 0.09 * torch.eye(size).double())
    assert set(drawn.abs().flatten().tolist()) == {0.3}


def test_rounds_differ():
    """Sylvester's first column is all ones: without signs of its own it would be a shift."""
    noise, like = Noise(noise_for(0, 0, 0), "orthogonal"), torch.zeros(4, 4)
    drawn = torch.stack([noise.draw(like, 1.0, "x") for _ in range(20)])
    assert drawn[:, :, 0].unique().tolist() == [-1, 1]


def test_a_round_gives_the_mean_gradient_of_a_linear_map():
    draws = torch.Generator().manual_seed(0)
    w, b = (torch.randn(s, generator=draws, dtype=torch.float64) for s in ((4, 8), (8, 4)))
    block, noise = linear_block(w, b), Noise(noise_for(0, 0, 1), "orthogonal")
    x = torch.randn(4, 8, generator=draws, dtype=torch.float64)
    y, notes = block(x)
    mean = torch.zeros_like(b)
    for _ in range(2):  # 8 rows: one round of dx, two of dy
        dx, dy = noise.draw(x, 0.1, "x"), noise.draw(y, 0.1, "y")
        mean += closed_form.l_drl_gradient(block, x, y.detach(), notes, dx, dy)[1] / 2
    torch.testing.assert_close(mean, 2 * 0.01 * (b - w.T), rtol=1e-12, atol=1e-14)
