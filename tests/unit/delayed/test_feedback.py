"""Feedback alignment, sign symmetry and direct feedback alignment against plain loops by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import alkit
from alkit.data.seeds import generator_for

METHODS = ("fa", "sign_symmetry", "dfa")
C, LR, SEED = 3, 0.1, 7


def sgd(parameters, lr=LR):
    return torch.optim.SGD(parameters, lr=lr)


def mlp():
    torch.manual_seed(0)
    made = nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, C)
    return nn.Sequential(*made).double()


def convnet():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2), nn.ReLU(inplace=True)),
        *(nn.Flatten(), nn.Linear(6 * 2 * 2, C)),
    ).double()


def rows(kind, count=21):
    shape = {"mlp": (6,), "convnet": (2, 8, 8)}[kind]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    return x, x.flatten(1)[:, :C].argmax(1)


MADE = {"mlp": mlp, "convnet": convnet}
BLOCKS = {"mlp": [0, 2, 4], "convnet": [0, 3, 6]}  # those with weights


def loader(kind, seen=None):
    """Shuffled, 8 + 8 + 5 samples; what it gives is written down."""

    def collate(samples):
        batch = torch.utils.data.default_collate(samples)
        if seen is not None:
            seen.append(batch)
        return batch

    return DataLoader(TensorDataset(*rows(kind)), 8, shuffle=True, collate_fn=collate)


def uniform(values, shape, *key):
    bound = 1 / math.sqrt(values)
    generator = generator_for(SEED, "feedback", *key)
    return torch.empty(shape, dtype=torch.float64).uniform_(-bound, bound, generator=generator)


def b_of(method, at, weight):
    """Return what takes the place of a weight in the backward pass."""
    inputs = weight[0].numel()
    if method == "fa":
        return uniform(inputs, weight.shape, at, "weight")
    return weight.detach().sign() / math.sqrt(3 * inputs)


def with_weight(layer, weight, x):
    """Return W x, without the bias."""
    if isinstance(layer, nn.Linear):
        return x @ weight.T
    own = layer.stride, layer.padding, layer.dilation, layer.groups
    return F.conv2d(x, weight, None, *own)


def gradients(net, kind, method, x, y):
    """Return the gradients of all parameters, layer by layer, from the last to the first."""
    inputs = []
    with torch.no_grad():
        for block in net:
            inputs.append(x)
            x = F.relu(x) if isinstance(block, nn.ReLU) else block(x)
    scores = x.requires_grad_()
    [error] = [score_error] = torch.autograd.grad(F.cross_entropy(scores, y), scores)
    found = {}
    for at in reversed(range(len(net))):
        block, x = net[at], inputs[at].clone().requires_grad_()
        if method == "dfa" and at + 1 in BLOCKS[kind]:  # the output of a layer
            first = max(n for n in BLOCKS[kind] if n <= at)
            b = uniform(error[0].numel(), (C, *error.shape[1:]), first)
            error = torch.einsum("bc,c...->b...", score_error, b)
        if at not in BLOCKS[kind]:
            y = F.relu(x) if isinstance(block, nn.ReLU) else block(x)
            [error] = torch.autograd.grad(y, x, error)
            continue
        own = dict(block.named_parameters())
        for name, grad in zip(own, torch.autograd.grad(block(x), own.values(), error), strict=True):
            found[f"{at}.{name}"] = grad
        b = block.weight if method == "dfa" else b_of(method, at, block.weight)
        [error] = torch.autograd.grad(with_weight(block, b, x), x, error)
    return found


def by_hand(kind, method, batches):
    net = MADE[kind]()
    for x, y in batches:
        found = gradients(net, kind, method, x, y)
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                parameter -= LR * found[name]
    return net


def fitted(kind, method, model=None, data=None, **options):
    net = MADE[kind]() if model is None else model
    own = {"optimizer": sgd, "lr": LR, "seed": SEED, "progress": False} | options
    return alkit.fit(net, loader(kind) if data is None else data, method=method, **own)


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("method", METHODS)
def test_weights_are_those_of_the_loop_by_hand(method, kind):
    net, seen = MADE[kind](), []
    fitted(kind, method, net, loader(kind, seen))
    batches = seen[-3:]  # before them two samples are looked at
    assert sorted(len(y) for _, y in batches) == [5, 8, 8]
    expected = by_hand(kind, method, batches)
    for (name, found), own in zip(net.named_parameters(), expected.parameters(), strict=True):
        assert (found - own).abs().max() < 1e-12, name
