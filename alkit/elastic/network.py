"""A network as units; a prefix of them can be frozen.

    units    embedding | attention 0 | mlp 0 | attention 1 | mlp 1 | ... | norm | head
    layers              [ ---- 0 ---------- ][ ---- 1 ---------- ]        never frozen

As soon as a layer is frozen the embedding is, too. Frozen units are not trained, and run in
evaluation mode: dropout in front of a stored output would make no sense.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from alkit.elastic.layout import Planner
from alkit.elastic.settings import Settings
from alkit.engine.device import place
from alkit.engine.modes import evaluating
from alkit.engine.optimizers import check_untied
from alkit.engine.random import noise_of
from alkit.models.blocks import learning

Loss = Callable[[Any, Any], Tensor]


class Network(nn.Module):
    """Units in a row and a loss.

    Args:
        units: an embedding, units of the layers, then the tail; each takes the output before it.
        layers: how many.
        loss: of (output, y), a mean over the samples.
        seed: noise is a function of it, the step, the micro-batch and the unit.
        units_a_layer: neighbours that freeze together; a cut may fall between them.

    Example:
        >>> from torch import nn
        >>> from alkit.elastic import Network
        >>> blocks = [nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)]
        >>> Network.from_blocks(blocks, nn.functional.cross_entropy).layers
        2
    """

    def __init__(
        self,
        units: Sequence[nn.Module],
        layers: int,
        loss: Loss,
        *,
        seed: int = 0,
        units_a_layer: int = 2,
    ) -> None:
        super().__init__()
        least = 2 + units_a_layer * layers if layers else 1
        if layers < 0 or units_a_layer < 1 or len(units) < least:
            raise ValueError(
                f"{len(units)} units for {layers} layers: give an embedding, {units_a_layer} units"
                " a layer and at least one unit after them"
            )
        self.units = nn.ModuleList(units)
        self.loss: Loss
        vars(self)["loss"] = loss  # its tensors aren't weights of the network
        self.layers, self.seed = layers, seed
        self.units_a_layer = units_a_layer
        self.frozen = 0

    @classmethod
    def from_blocks(
        cls, blocks: nn.Module | Iterable[nn.Module], loss: Loss, *, seed: int = 0
    ) -> "Network":
        """Make one of any list of blocks, or of a network that `alkit.blocks` cuts.

        The first block is the embedding and the last one the tail; those between freeze one by one.
        A block without parameters joins the one before.
        """
        units = learning(blocks)
        return cls(units, max(0, len(units) - 2), loss, seed=seed, units_a_layer=1)

    def first(self, frozen: int | None = None) -> int:
        """Return the number of the first unit that is active with `frozen` layers frozen."""
        frozen = self.frozen if frozen is None else frozen
        return 1 + self.units_a_layer * frozen if frozen else 0

    def layer_of(self, unit: int) -> int | None:
        """Return the layer that a unit belongs to; None for the embedding and the tail."""
        layer = (unit - 1) // self.units_a_layer
        return layer if unit and layer < self.layers else None

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.units)

    def named_optimizers(self) -> dict[str, None]:
        """Return none: its trainer has them."""
        return {}

    def check_freezing(self) -> None:
        """Raise a ValueError if nothing can freeze, or if it would take along what never does."""
        if not self.layers:
            raise ValueError(
                f"freeze is given, and of {len(self.units)} blocks none lies between the first and"
                " the last, which are not frozen: give three or more that have parameters"
            )
        most = self.first(self.layers)
        kinds = "what may freeze (0) and what never does (1):"
        check_untied(kinds, [self.units[:most], self.units[most:]])

    def freeze(self, frozen: int) -> None:
        """Freeze this many layers; none is thawed."""
        if not self.frozen <= frozen <= self.layers:
            said = f"{frozen} of {self.layers} layers to freeze, and {self.frozen} are"
            raise ValueError(f"{said}: freezing goes one way")
        self.frozen = frozen
        for parameter in self.units[: self.first()].parameters():
            parameter.requires_grad_(False)
            parameter.grad = None
        self.units[: self.first()].eval()

    def train(self, mode: bool = True) -> "Network":
        """Set the mode; frozen units stay in evaluation mode."""
        super().train(mode)
        self.units[: self.first()].eval()
        return self

    def sizes(self) -> list[float]:
        """Return the millions of parameters of every unit."""
        return [sum(p.numel() for p in unit.parameters()) / 1e6 for unit in self.units]

    def planner(self, settings: Settings, *, devices: int, batch: int) -> Planner:
        """Return the planner of layouts on `devices`, with batches of this size at first."""
        return Planner(settings, self.sizes(), devices, batch, self.units_a_layer)

    def run(self, x: Any, low: int, high: int, key: tuple[int, ...] | None = None) -> Any:
        """Return the output of the units low .. high - 1, whose noise is of `key`."""
        for number in range(low, high):
            unit = self.units[number]
            drawn = key is not None and unit.training
            with noise_of(unit, self.seed, *(key or ()), number) if drawn else nullcontext():
                x = unit(x)
        return x

    def forward(self, x: Any) -> Any:
        """Return the scores."""
        return self.run(x, 0, len(self.units), (0,))

    @torch.no_grad()
    def predict(self, x: Any) -> Any:
        """Return the scores in evaluation mode; the mode is restored."""
        with evaluating(self):
            return self(place(x, self))

    @torch.no_grad()
    def prefix(self, x: Any, low: int = 0) -> Any:
        """Return the output of frozen units: of all of them, or from unit `low` on."""
        return self.run(place(x, self), low, self.first())
