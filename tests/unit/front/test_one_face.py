"""alkit.fit: one call for every method, from blocks and tensors; what can't be taken is refused."""

import pytest
import torch
from torch import nn

import alkit
from alkit.data.parts import Part
from alkit.delayed.methods import METHODS as DELAYED
from tests.helpers import state_of
from tests.make import labelled, tanh_blocks

C, WIDTH = 3, 8


def blocks(outputs=C):
    return tanh_blocks(2, WIDTH, outputs)


def tensors(count=64, seed=0):
    return labelled(count, WIDTH, C, seed)


def options(method):
    parts = method in DELAYED and DELAYED[method].accumulates
    own = {"micro": 4} if parts else {}
    return {"method": method, "batch_size": 16, "progress": False} | own


def test_the_same_bits_as_the_methods_own_calls():
    x, y = tensors()
    twin, model = (alkit.to_al(blocks(), C, x[:2]) for _ in range(2))
    alkit.fit(model, Part(x, y, C), method="al_pipeline", batch_size=16, seed=3, progress=False)
    alkit.train_epoch(twin, Part(x, y, C).batches(16, seed=3), "al", seed=3)
    own, other = state_of(model), state_of(twin)
    assert all(torch.equal(own[name], other[name]) for name in own)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"method": "dtp", "cuts": [1]}, "unknown settings cuts: there are .*beta"),
        ({"method": "al", "ranks": 2}, "there are 2 ranks, and al runs in one process"),
        ({"method": "splitfed", "cuts": [1, 2, 1]}, "a network is split once"),
        ({"method": "fr", "lr": {"enc": 0.1, "ae": 0.1}}, "fr takes one number"),
        ({"method": "fr", "cuts": [1], "workers": 3}, "workers is 3, which fr can't take: cuts"),
        ({"method": "al", "loss": nn.functional.mse_loss}, "the loss does not take scores"),
    ],
)
def test_nothing_is_ignored(asked, message):
    with pytest.raises((TypeError, ValueError), match=message):
        alkit.fit(blocks(), tensors(), tensors(), progress=False, **asked)


@pytest.mark.parametrize("method", ["bp", "al", "pipedream", "1f1b", "pipelearn", "elastic", "dtp"])
def test_what_is_not_finite_or_of_another_type_is_told_alike(method):
    x, y = tensors()
    # what numpy and scikit-learn give is double: it is told before anything trains
    with pytest.raises(ValueError, match="does not take the first batch.*torch.float64"):
        alkit.fit(blocks(), (x.double(), y), **options(method))
    x[40, 0] = float("inf")
    with pytest.raises(FloatingPointError, match="not finite|is nan"):
        alkit.fit(blocks(), (x, y), epochs=3, **options(method))


@pytest.mark.parametrize("method", ["bp", "al", "pipedream", "pipelearn", "elastic", "dtp"])
def test_images_of_bytes_train_as_the_same_images_scaled(method):
    """CIFAR-10 and tiny ImageNet are kept as bytes."""
    drawn = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (48, 3, 4, 4), dtype=torch.uint8, generator=drawn)
    kept = Part(x, x[:, 0, 0, 0].long() % C, C, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    asked = {"method": method, "batch_size": 16, "lr": 0.01, "progress": False}
    asked |= {"iterations": 1} if method == "dtp" else {}
    found = []
    for part in (kept, kept.floats()):
        torch.manual_seed(1)
        net = [nn.Sequential(nn.Flatten(), nn.Linear(48, WIDTH), nn.ELU()), *blocks()[1:]]
        found.append(alkit.fit(net, part, part, part, **asked))
    assert torch.equal(found[0].losses, found[1].losses)
    assert torch.equal(found[0].test_correct, found[1].test_correct)


@pytest.mark.parametrize("method", ["bp", "pipedream", "elastic", "dtp"])
def test_numbers_are_not_compared_as_classes_nor_spread_over_scores(method):
    x, _ = tensors()
    with pytest.raises(ValueError, match="numbers to predict need mean squared errors"):
        alkit.fit(blocks(), (x, x[:, :1]), **options(method))
    ends_in_one = blocks(1)
    asked = options(method) | {"loss": nn.functional.mse_loss}
    with pytest.raises(ValueError, match=r"over scores \(16, 1\) .* give y\[:, None\]"):
        alkit.fit(ends_in_one, (x, x[:, 0]), **asked)
    alkit.fit(ends_in_one, (x, x[:, :1]), lr=0.01, **asked)
