"""Small networks and samples for split learning."""

from collections import defaultdict
from functools import partial
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from alkit.base.seeds import generator_for
from alkit.engine.device import devices_named
from alkit.split.half import SGD
from alkit.split.networks import has_batch_norm
from alkit.split.pairs import Pairs
from alkit.split.settings import Settings
from alkit.split.stream import Stream


def units(norm: str = "none", double: bool = False, dropout: float = 0.0) -> list[nn.Module]:
    """Four units for (B, 3, 6, 6): two convolutions, two linears."""
    torch.manual_seed(0)
    norms = {"batch": nn.BatchNorm2d, "group": lambda c: nn.GroupNorm(2, c)}

    def unit(channels: int, out: int) -> nn.Module:
        more = [norms[norm](out)] if norm in norms else []
        return nn.Sequential(nn.Conv2d(channels, out, 3, padding=1), *more, nn.Tanh())

    made = [
        unit(3, 4),
        nn.Sequential(unit(4, 6), nn.MaxPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(54, 16), nn.Tanh(), nn.Dropout(dropout)),
        nn.Linear(16, 4),
    ]
    return [part.double() for part in made] if double else made


def samples(count: int, device: int = 0, double: bool = False) -> tuple[Tensor, Tensor]:
    """Inputs with a little to learn in them, and labels."""
    draw = generator_for("samples", device)
    x = torch.randn(count, 3, 6, 6, generator=draw, dtype=torch.float64)
    y = (x[:, 0, :3, :3].sum((1, 2)) > 0).long() + 2 * (x[:, 1].sum((1, 2)) > 0).long()
    return (x if double else x.float()), y


def parts(sizes: list[int], double: bool = False) -> list[tuple[Tensor, Tensor]]:
    return [samples(size, device, double) for device, size in enumerate(sizes)]


def trained(sizes=(20,), *, norm="none", double=False, dropout=0.0, **options) -> SimpleNamespace:
    """Train the small network on devices with so many samples."""
    return pairs_of(units(norm, double, dropout), parts(list(sizes), double), **options)


def pairs_of(blocks, samples, *, cut=1, optimizer=None, device=(), **options) -> SimpleNamespace:
    """Train blocks on the samples of each device; they stay as they are."""
    options = {"batch": 8, "epochs": 2, "lr": 0.1} | options
    least = 2 if has_batch_norm(blocks) else 1
    fixed = {"units": len(blocks), "devices": len(samples), "least": least}
    settings = Settings(cuts=cut, **fixed | options)
    streams = [Stream(*own, settings, at) for at, own in enumerate(samples)]
    pairs = Pairs(
        blocks, settings, streams, partial(optimizer or SGD, lr=settings.lr), devices_named(device)
    )
    rounds, losses = [pairs.round(number) for number in range(pairs.rounds)], defaultdict(list)
    for each in rounds:
        for at, own in each.losses.items():
            losses[at] += own
    losses = {at: torch.tensor(own) for at, own in losses.items()}
    return SimpleNamespace(state=pairs.state, losses=losses, rounds=rounds)


def equal(one: dict, other: dict) -> bool:
    """Whether tensors by name are equal to the last bit."""
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def same_bits(first: SimpleNamespace, second: SimpleNamespace) -> bool:
    """Whether states and losses are equal to the last bit."""
    return equal(first.state, second.state) and equal(first.losses, second.losses)
