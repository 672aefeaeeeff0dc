"""Low-rank updates (LoRA, Hu et al. 2021), which a user may train instead of whole layers.

    y = W x + b + B A x        W and b fixed; A (rank, in) random, B (out, rank) 0 at the start

`adapt` puts them beside every linear map of the layers; `merge` adds B A to W, and the network is
of plain linear maps again.
"""

import torch
from torch import Tensor, nn

from alkit.base.seeds import generator_for
from alkit.elastic.network import Network

RANK = 8


class LowRank(nn.Module):
    """A linear map that stays, and an update of a low rank that is trained.

    Attributes:
        a, b: (rank, in) and (out, rank).
    """

    def __init__(self, linear: nn.Linear, generator: torch.Generator, rank: int = RANK) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        a = torch.randn(rank, linear.in_features, generator=generator) / linear.in_features**0.5
        self.a = nn.Parameter(a.to(linear.weight))
        self.b = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        update = nn.functional.linear(nn.functional.linear(x, self.a), self.b)
        return self.linear(x) + update

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Return the linear map with its update added to it."""
        self.linear.weight += self.b @ self.a
        return self.linear


def adapt(network: Network, *, seed: int = 0) -> None:
    """Train nothing but low-rank updates of the layers' linear maps, and what is after the layers.

    Those are the layers that elastic training freezes, and the tail that it never does. The
    embedding, the layers' norms and biases stay.
    """
    network.requires_grad_(False)
    tail = 1 + network.units_a_layer * network.layers
    for name, each in [*network.units.named_modules()]:
        if isinstance(each, nn.Linear) and 0 < int(name.split(".")[0]) < tail:
            network.units.set_submodule(name, LowRank(each, generator_for(seed, "lora", name)))
    network.units[tail:].requires_grad_(True)


def merge(network: Network) -> None:
    """Add all updates to their linear maps; a network without any stays as it is."""
    for name, each in [*network.units.named_modules()]:
        if isinstance(each, LowRank):
            network.units.set_submodule(name, each.merged())
