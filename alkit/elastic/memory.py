"""The bytes that a rank holds while it trains, by part, against a budget.

    weights        of the active units of its stage
    frozen         weights of the frozen units that it runs
    gradients      of its weights
    moments        of its weights
    activations    what autograd keeps for the backward, of all micro-batches that are under way
    message        gradients on their way to the other replicas; there are none without

When gradients travel no activations are left, so the larger of both counts. What an operator needs
while it runs, a batch's inputs and stored outputs are not counted.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from alkit.elastic.layout import Layout
from alkit.elastic.network import Network
from alkit.elastic.units import bytes_of, tensors_of


@dataclass(frozen=True, kw_only=True)
class Held:
    """The bytes of one rank, by part."""

    weights: int
    frozen: int
    gradients: int
    moments: int
    activations: int = 0
    message: int = 0

    @property
    def total(self) -> int:
        """The most at one time."""
        stays = self.weights + self.frozen + self.gradients + self.moments
        return stays + max(self.activations, self.message)

    def plain(self) -> dict[str, int]:
        """Return the parts and the total by name."""
        return asdict(self) | {"total": self.total}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:,}" for name, value in asdict(self).items() if value)


class Budget:
    """What a rank holds, calculated from shapes, and how many bytes it may."""

    def __init__(self, network: Network, make: Callable[..., Any], most: int | None = None) -> None:
        self.network, self.make, self.most = network, make, most
        self._moments = cache(self._moments_of)

    def held(self, layout: Layout, stage: int, activations: int = 0) -> Held:
        """Return what a rank of a stage holds, with so many bytes of activations."""
        units, first = self.network.units, self.network.first(layout.frozen)
        low, high = layout.bounds[stage]
        active = units[max(low, first) : max(high, first)]
        frozen = [*units[low : min(high, first)], *(units[: layout.start] if stage == 0 else ())]
        trained = [each for each in active.parameters() if each.requires_grad]
        gradients = bytes_of(trained)
        return Held(
            weights=bytes_of(tensor for unit in active for tensor in tensors_of(unit)),
            frozen=bytes_of(tensor for unit in frozen for tensor in tensors_of(unit)),
            gradients=gradients,
            moments=sum(self._moments(each.shape, each.dtype) for each in trained),
            activations=activations,
            message=gradients if layout.replicas > 1 else 0,
        )

    def check(self, layout: Layout, stage: int, activations: int = 0) -> None:
        """Raise a ValueError that says what does not fit, and what would help."""
        if self.most is None:
            return
        found = self.held(layout, stage, activations)
        if found.total > self.most:
            raise ValueError(
                f"stage {stage} of {layout.stages} needs {found.total:,} bytes with"
                f" {layout.frozen} frozen layers ({found}) and memory_budget is {self.most:,}: give"
                " more stages, a smaller batch or more micro-batches"
            )

    def _moments_of(self, shape: torch.Size, dtype: torch.dtype) -> int:
        """Return the bytes that the optimiser keeps for such a parameter, by a step of one."""
        own = nn.Parameter(torch.zeros(shape, dtype=dtype))
        own.grad = torch.zeros_like(own)
        optimizer = self.make([("weight", own)])
        optimizer.step()
        return bytes_of(t for t in optimizer.state[own].values() if isinstance(t, Tensor))
