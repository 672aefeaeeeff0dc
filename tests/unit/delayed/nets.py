"""Small networks, batches and runs that the tests of delayed gradients share."""

import torch
import torch.nn.functional as F
from torch import nn

from alkit.delayed import Pipeline, even_cuts, schedule_for, train_epoch
from alkit.delayed.methods import method_named
from alkit.delayed.settings import Settings
from alkit.delayed.stage import ModuleStage
from studies.common.resnet_cifar import resnet_cifar
from tests.helpers import run_in_any_order

WIDTH, CLASSES = 6, 3


def momentum(parameters):
    """SGD with all that could go wrong: Nesterov momentum and weight decay."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2)


def mlp(blocks=6, dropout=0.0):
    """Blocks with BatchNorm, and a linear one at the end."""
    torch.manual_seed(0)
    made = [
        nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Dropout(dropout)
        )
        for _ in range(blocks - 1)
    ]
    return [*made, nn.Linear(WIDTH, CLASSES)]


def vectors(count, size=8):
    """Batches for `mlp`."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(size) % CLASSES
    return [(torch.randn(size, WIDTH, generator=generator), y) for _ in range(count)]


def resnet(width=4):
    """A ResNet-20 of small width: 11 units."""
    torch.manual_seed(0)
    return resnet_cifar(20, width=width)


def images(count, size=4, side=8):
    """Batches for `resnet`."""
    generator = torch.Generator().manual_seed(2)
    y = torch.arange(size) % 10
    return [(torch.randn(size, 3, side, side, generator=generator), y) for _ in range(count)]


def pipeline(blocks, modules, optimizer=momentum, loss=F.cross_entropy, **options):
    """Cut blocks evenly."""
    return Pipeline(blocks, loss, even_cuts(len(blocks), modules), optimizer, **options)


def trained(blocks, modules, batches, method, executor="single", optimizer=momentum, **settings):
    """Train a pipeline made for this; return the record."""
    return train_epoch(pipeline(blocks, modules, optimizer), batches, method, executor, **settings)


def bits(model):
    """Return all parameters and buffers in the order of the blocks, whatever the cuts."""
    return [tensor.clone() for module in model for tensor in module.state_dict().values()]


def equal(some, others):
    """Whether two lists hold the same tensors, to the bit."""
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def outcome(record):
    """Return what two runs must agree on to the bit: losses, parameters and buffers."""
    return [record.losses, *bits(record.pipeline)]


def same(one, other):
    """Whether two records agree to the bit."""
    return equal(outcome(one), outcome(other))


def stepped_in_any_order(model, method, batches, chooser, micro=1, **options):
    """Train on one thread, where `chooser` says which of the ready tasks is next."""
    chosen, own = method_named(method), Settings(**options)
    stages = [ModuleStage(model, k, chosen, own, micro) for k in range(len(model))]
    schedule = schedule_for(method, len(model), micro)
    run_in_any_order(schedule, stages, batches, chooser.randrange)
    return [stages[-1].losses.rows(), *bits(model)]


def plain(blocks, batches, optimizer=momentum, loss=F.cross_entropy, seed=0):
    """Train the unsplit network with one optimiser, the usual way; return losses and tensors."""
    from alkit.engine.random import random_from

    stepper = optimizer([p for block in blocks for p in block.parameters()])
    losses = []
    for number, (x, y) in enumerate(batches):
        for place, block in enumerate(blocks):
            with random_from(seed, "once", number, 0, place):
                x = block(x)
        value = loss(x, y)
        stepper.zero_grad()
        value.backward()
        stepper.step()
        losses.append(value.detach())
    tensors = [t.clone() for block in blocks for t in block.state_dict().values()]
    return torch.stack(losses), tensors
