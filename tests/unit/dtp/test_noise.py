"""Noise: a function of its key."""

import torch

from alkit.dtp.noise import draw, noise_for


def test_noise_is_a_function_of_its_key():
    def drawn(*key):
        noise = noise_for(*key)
        return [draw(torch.zeros(5, 3), 0.5, noise) for _ in range(3)]

    first, again = drawn(0, 1, 2), drawn(0, 1, 2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[2])
    for other in ((1, 1, 2), (0, 2, 2), (0, 1, 3)):
        assert not torch.equal(drawn(*other)[0], first[0])
