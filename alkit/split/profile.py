"""What the planner must know: seconds and bytes of every unit on a machine, and speeds of a link.

Units are timed at several batch sizes, for a small micro-batch costs more a sample than a large
one; a line through them gives the fixed part.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from alkit.engine.costs import backprop_row, profile_rows
from alkit.engine.device import place
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


@dataclass(frozen=True)
class Machine:
    """A device or the server: its units, and the bytes that it has for training."""

    units: tuple[Unit, ...]
    memory_bytes: int | None = None

    def scaled(self, factor: float) -> "Machine":
        """Return a machine that takes `factor` times as long for everything."""
        units = (
            replace(
                own,
                forward=own.forward.scaled(factor),
                backward=own.backward.scaled(factor),
                update_s=own.update_s * factor,
            )
            for own in self.units
        )
        return replace(self, units=tuple(units))

    def plain(self) -> str:
        """Return it as text that can travel."""
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str) -> "Machine":
        """Return what `plain` gave."""
        plain = json.loads(text)
        lines = (
            {name: Line(*own[name]) for name in ("forward", "backward")} for own in plain["units"]
        )
        units = (Unit(**own | both) for own, both in zip(plain["units"], lines, strict=True))
        return Machine(tuple(units), plain["memory_bytes"])


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
    options: dict[str, Any] = {"warmup": WARMUP, "threads": threads, "progress": False}
    costs = [profile_rows(row, [(x[:n], y[:n])] * (WARMUP + repeats), **options) for n in sizes]
    found = [
        Unit(
            forward=fitted(sizes, [cost.forward_s for cost in own]),
            backward=fitted(sizes, [cost.backward_s for cost in own]),
            update_s=own[-1].update_s,
            output_bytes=own[-1].output_bytes / sizes[-1],
            saved_bytes=own[-1].saved_bytes / sizes[-1],
            parameter_bytes=sum(tensor.nbytes for tensor in unit.state_dict().values()),
        )
        for unit, *own in zip(units, *costs, strict=True)
    ]
    return Machine(tuple(found), memory_bytes)
