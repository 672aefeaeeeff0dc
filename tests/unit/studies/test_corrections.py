"""Corrections of old gradients: each against a loop over scalars, and what they leave alone."""

from functools import partial
from operator import mul

import pytest
import torch
from torch import nn

import alkit
from studies.delayed.corrections import GapAware, Predict
from tests.unit.delayed.nets import mlp, trained, vectors

RATE, XS = 0.05, [1.0, 2.0, 1.0, -1.0, 2.0]


class Times(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x):
        return self.w * x


def half_square(y, _):
    return (y**2 / 2).mean()


plain_sgd, adam = partial(torch.optim.SGD, lr=RATE), partial(torch.optim.Adam, lr=RATE)
momentum, decayed = partial(plain_sgd, momentum=0.5), partial(plain_sgd, weight_decay=0.1)


def scalars(correction, optimizer, executor="single"):
    """Return the weights (a, b, c) of y = c b a x after five batches."""
    batches = [(torch.tensor([x], dtype=torch.float64), torch.zeros(1)) for x in XS]
    pipeline = alkit.delayed.Pipeline([Times(), Times(), Times()], half_square, [1, 2], optimizer)
    alkit.delayed.train_epoch(pipeline, batches, "pipedream", executor, correction=correction)
    return [module.blocks[0].w.item() for module in pipeline]


def loop(predict=0.0, gaps=False, mu=0.0, decay=0.0):
    """The same by hand: all versions are kept, and every batch looks up what it saw."""
    versions = [[1.0], [1.0], [1.0]]
    speed, sizes = [0.0] * 3, [[], [], []]
    speeds = [[0.0], [0.0], [0.0]]
    for m, x in enumerate(XS):
        seen, inputs, value = [max(0, m - d) for d in (2, 1, 0)], [], x
        used = []
        for k, v in enumerate(seen):
            used.append(versions[k][v] - predict * (m - v) * RATE * speeds[k][v])
            inputs.append(value)
            value *= used[k]
        error = value
        for k in (2, 1, 0):
            gradient = error * inputs[k] + decay * versions[k][m]
            error *= used[k]
            if gaps and sizes[k]:
                gap = abs(versions[k][m] - versions[k][seen[k]])
                shares = [0.001 * 0.999**back for back in range(len(sizes[k]))][::-1]
                mean = sum(map(mul, shares, sizes[k])) / sum(shares)
                gradient /= 1 + gap / (RATE * mean**0.5 + 1e-8)
            speed[k] = mu * speed[k] + gradient
            step = -RATE * speed[k]
            sizes[k].append(speed[k] ** 2)
            versions[k].append(versions[k][m] + step)
            speeds[k].append(speed[k])
    return [own[-1] for own in versions]


CASES = {
    "none": (None, {}, plain_sgd),
    "predict": (Predict(), {"predict": 1.0, "mu": 0.5}, momentum),
    "gap_aware": (GapAware(), {"gaps": True}, plain_sgd),
    "gap_aware, decay": (GapAware(), {"gaps": True, "decay": 0.1}, decayed),
    "gap_aware, momentum": (GapAware(), {"gaps": True, "mu": 0.5}, momentum),
}


@pytest.mark.parametrize("name", CASES)
def test_scalars_by_hand(name):
    correction, by_hand, optimizer = CASES[name]
    found = scalars(correction, optimizer)
    assert found == pytest.approx(loop(**by_hand), rel=1e-12)
    assert scalars(correction, optimizer, "threads") == found


def test_prediction_follows_adam():
    """One module below the last, so a forward lacks one update; Adam by its formula."""
    seen = []

    class Seen(Times):
        def forward(self, x):
            seen.append(self.w.item())
            return super().forward(x)

    batches = [(torch.tensor([x], dtype=torch.float64), torch.zeros(1)) for x in XS]
    predicted = [1.0, 1.0]  # before its first update there is nothing to go by
    for count in range(1, 6):
        fresh = alkit.delayed.Pipeline([Seen(), Times()], half_square, [1], adam)
        seen.clear()
        alkit.delayed.train_epoch(fresh, batches[:count], "pipedream", correction=Predict())
        weight = fresh[0].blocks[0].w
        state = {key: own.item() for key, own in fresh.optimizers[0].state[weight].items()}
        mean = state["exp_avg"] / (1 - 0.9 ** state["step"])
        square = state["exp_avg_sq"] / (1 - 0.999 ** state["step"])
        predicted.append(weight.item() - RATE * mean / (square**0.5 + 1e-8))
    assert seen == pytest.approx(predicted[:5], rel=1e-9)


def test_a_method_without_old_versions_is_refused():
    with pytest.raises(ValueError, match="Predict with fr: it is for pipedream, ddg"):
        trained(mlp(), 3, vectors(6), "fr", correction=Predict())


def test_gap_aware_steps_decay_less_where_decay_is_apart_from_the_gradient():
    """AdamW by its formula, one update late."""
    weight = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight], lr=RATE, weight_decay=0.1)
    gaps = GapAware()("pipedream", 1, optimizer)
    versions, squares, mean, square = [1.0], 0.0, 0.0, 0.0
    for m, gradient in enumerate(XS):
        now, then = versions[m], versions[max(0, m - 1)]
        penalty = 1.0
        if m:
            penalty += abs(now - then) / (RATE * (squares / (1 - 0.999**m)) ** 0.5 + 1e-8)
        mean, square = (
            b * old + (1 - b) * (gradient / penalty) ** power
            for b, old, power in ((0.9, mean, 1), (0.999, square, 2))
        )
        root = (square / (1 - 0.999 ** (m + 1))) ** 0.5 + 1e-8
        step = mean / (1 - 0.9 ** (m + 1)) / root + 0.1 * now / penalty
        squares = 0.999 * squares + 0.001 * step**2
        versions.append(now - RATE * step)
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        with gaps.step({"w": weight}, {"w": torch.tensor([then], dtype=torch.float64)}, m):
            optimizer.step()
        assert weight.item() == pytest.approx(versions[-1], rel=1e-9)
