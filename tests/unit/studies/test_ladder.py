"""Variants of notebook 21: against plain torch, which of them are local."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit import one_hot
from alkit.al.backprop import BPModel
from alkit.al.codes import code_table
from studies.ladder import variants

CLASSES, WIDTH, BATCH, LR = 3, 6, 12, 1e-2
LOCAL = [name for name, variant in variants.VARIANTS.items() if variant.local]


def made(name: str, seed: int = 0, layers: int = 3):
    """Return a variant over dense blocks without noise, the same for the same seed."""
    torch.manual_seed(seed)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(layers)]
    return variants.build(name, blocks, CLASSES, torch.zeros(2, WIDTH), lr=LR)


def batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, one-hot rows and class numbers, every class four times."""
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(seed))
    index = torch.arange(BATCH) % CLASSES
    return x, one_hot(index, CLASSES), index


# ---- each variant against plain torch ----


def cross_entropy(scores: Tensor, index: Tensor, smoothing: float = 0.1) -> Tensor:
    wanted = (1 - smoothing) * one_hot(index, scores.shape[1]) + smoothing / scores.shape[1]
    return -(wanted * scores.log_softmax(1)).sum(1).mean()


def cosines(m: Tensor, rows: Tensor) -> Tensor:
    return F.cosine_similarity(m[:, None], rows[None], dim=2)


def squared(a: Tensor, b: Tensor) -> Tensor:
    return ((a - b) ** 2).mean()


def linear_of(module: nn.Module) -> nn.Linear:
    return next(part for part in module.modules() if isinstance(part, nn.Linear))


def by_fixed_codes(layer, level, s, index, rows):
    table = code_table(CLASSES, 128)
    associated = cross_entropy(10 * cosines(linear_of(layer.enc.b)(s), table), index)
    constant = 0.0 if level else cross_entropy(10 * rows[index], index, 0.0)  # orthonormal: exact
    return associated + constant


def learned(layer, level, s, index, rows, *, coupled):
    codes = torch.tanh(linear_of(layer.ae.g)(rows))
    decoded = linear_of(layer.ae.h)(codes)[index]
    autoencoder = squared(decoded, rows[index]) if level else cross_entropy(decoded, index)
    target = codes if coupled else codes.detach()
    m = linear_of(layer.enc.b)(s)
    return cross_entropy(10 * cosines(m, target - target.mean(0)), index) + autoencoder


by_detached, by_coupled = partial(learned, coupled=False), partial(learned, coupled=True)


def by_published(layer, level, s, index, rows):
    codes = torch.tanh(linear_of(layer.ae.g)(rows))
    decoded = linear_of(layer.ae.h)(codes)[index]
    first = cross_entropy(torch.tanh(decoded), index, 0.0)
    autoencoder = squared(decoded, rows[index]) if level else first
    return squared(torch.tanh(linear_of(layer.enc.b)(s)), codes.detach()[index]) + autoencoder


ORACLES: dict[str, Callable] = {
    name: globals()[f"by_{name}"] for name in LOCAL if name not in variants.HEADS
}


@pytest.mark.parametrize("name", ORACLES)
def test_a_local_variant_in_plain_torch(name):
    model, (x, y, index) = made(name), batch()
    code, rows = model.label_input(y), torch.eye(CLASSES)
    for level, layer in enumerate(model):
        expected = ORACLES[name](layer, level, layer.enc.f(x), index, rows)
        own = dict(layer.named_parameters())
        gradients = torch.autograd.grad(expected, own.values(), allow_unused=True)
        rows = layer.ae.g(rows).detach()
        x, code = layer(x, code)
        torch.testing.assert_close(sum(layer.losses), expected)
        layer.backward()
        for (key, parameter), gradient in zip(own.items(), gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, msg=f"{level} {key}")


# ---- which variants are local ----


def changed_by_step(model, depth: int) -> list[bool]:
    """Step on the loss of one exit and say which blocks, heads included, changed."""
    x, y, _ = batch()
    before = [copy.deepcopy(dict(block.named_parameters())) for block in model]
    if isinstance(model, BPModel):
        model.loss(x, y).backward()
        model.optimizer.step()
    else:
        model(x, y)
        model[depth].backward_and_update()
    after = [dict(block.named_parameters()) for block in model]
    return [
        any(not torch.equal(old[key], new[key]) for key in old)
        for old, new in zip(before, after, strict=True)
    ]


@pytest.mark.parametrize("name", variants.VARIANTS)
def test_a_step_of_a_block_changes_that_block_alone_or_the_variant_is_not_local(name):
    isolated = []
    for depth in range(3):
        model = made(name)
        alone = [block == depth for block in range(len(model))]
        isolated.append(changed_by_step(model, depth) == alone)
    assert all(isolated) == variants.VARIANTS[name].local
