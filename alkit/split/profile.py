"""What the planner must know: seconds and bytes of every unit on a machine, and speeds of a link.

Units are timed at several batch sizes, for a small micro-batch costs more a sample than a large
one; a line through them gives the fixed part.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.engine.device import place
from alkit.engine.profile import backprop_row, profile_rows
from alkit.split.half import sgd
from alkit.split.times import Line, fitted

WARMUP = 2

GOODPUT = 0.96  # of a line's rate is left for what TCP carries


@dataclass(frozen=True)
class Unit:
    """One unit on one machine.

    Attributes:
        forward, backward: seconds of n samples.
        update_s: seconds of an optimiser step.
        output_bytes, saved_bytes: a sample; what is handed on, and what is kept for the backward.
        parameter_bytes: of weights and buffers.
    """

    forward: Line
    backward: Line
    update_s: float
    output_bytes: float
    saved_bytes: float
    parameter_bytes: int

    def scaled(self, factor: float) -> "Unit":
        """Return the unit where everything takes `factor` times as long."""
        forward, backward = self.forward.scaled(factor), self.backward.scaled(factor)
        return replace(self, forward=forward, backward=backward, update_s=self.update_s * factor)


@dataclass(frozen=True)
class Machine:
    """A device or the server: its units, and the bytes that it has for training."""

    units: tuple[Unit, ...]
    memory_bytes: int | None = None

    def scaled(self, factor: float) -> "Machine":
        """Return a machine that takes `factor` times as long for everything."""
        return replace(self, units=tuple(own.scaled(factor) for own in self.units))

    def plain(self) -> str:
        """Return it as text that can travel."""
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str) -> "Machine":
        """Return what `plain` gave.

        Raises:
            ValueError: it is no such text.
        """
        try:
            plain: dict[str, Any] = json.loads(text)
            units = tuple(
                Unit(Line(*own.pop("forward")), Line(*own.pop("backward")), **own)
                for own in plain["units"]
            )
            return Machine(units, plain["memory_bytes"])
        except (AttributeError, KeyError, RecursionError, TypeError) as error:
            raise ValueError(f"no machine's profile: {error}") from error


@dataclass(frozen=True)
class Link:
    """What a link carries.

    Attributes:
        up_bps, down_bps: bit/s that arrive, see `of_rates`.
        latency_up_s, latency_down_s: one way.
    """

    up_bps: float
    down_bps: float
    latency_up_s: float = 0.0
    latency_down_s: float = 0.0

    @staticmethod
    def of_rates(up_mbit: float, down_mbit: float) -> "Link":
        """Return what TCP carries over a line of these rates, 10^6 bit/s."""
        return Link(GOODPUT * 1e6 * up_mbit, GOODPUT * 1e6 * down_mbit)

    def up_s(self, size: float) -> float:
        """Return the seconds that so many bytes take upwards."""
        return 8 * size / self.up_bps

    def down_s(self, size: float) -> float:
        """Return the seconds that so many bytes take downwards."""
        return 8 * size / self.down_bps


def measure(
    units: Sequence[nn.Module],
    x: Tensor,
    y: Tensor,
    *,
    sizes: Sequence[int] = (),
    repeats: int = 5,
    threads: int = 1,
    memory_bytes: int | None = None,
) -> Machine:
    """Time the units where they are, on a copy: nothing is trained.

    Args:
        x, y: a batch.
        sizes: of micro-batches to time; default a tenth, a half and the whole of the batch.
        repeats: timed ones of each size; the median counts.
    """
    x, y = place((x, y), nn.ModuleList(units))
    sizes = sorted(set(sizes or (max(2, len(y) // 10), max(2, len(y) // 2), len(y))))
    row = partial(backprop_row, units, F.cross_entropy, sgd)
    costs = []
    for size in sizes:
        batch = x[:size], y[:size]
        batches = [batch] * (WARMUP + repeats)
        costs.append(profile_rows(row, batches, warmup=WARMUP, threads=threads, progress=False))
    found = []
    for at, unit in enumerate(units):
        own = [of_size[at] for of_size in costs]
        largest, count = own[-1], sizes[-1]
        found.append(
            Unit(
                forward=fitted(sizes, [cost.forward_s for cost in own]),
                backward=fitted(sizes, [cost.backward_s for cost in own]),
                update_s=largest.update_s,
                output_bytes=largest.output_bytes / count,
                saved_bytes=largest.saved_bytes / count,
                parameter_bytes=_bytes(unit),
            )
        )
    return Machine(tuple(found), memory_bytes)


def _bytes(unit: nn.Module) -> int:
    with torch.no_grad():
        return sum(tensor.numel() * tensor.element_size() for tensor in unit.state_dict().values())
