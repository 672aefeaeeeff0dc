"""Profiles for the planner: seconds and bytes of every unit on a machine, and speeds of a link.

Units are timed at several batch sizes, because a small micro-batch costs more a sample than a large
one; a line through them gives the fixed part.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.engine.costs import backprop_costs, backprop_stages
from alkit.engine.device import place
from alkit.split.half import SGD
from alkit.split.times import Line, fitted

WARMUP = 2
GOODPUT = 0.96  # of the rate of a line is left for data over TCP


class Unit(NamedTuple):
    """One unit on one machine: seconds of n samples, and of an optimiser step."""

    forward: Line
    backward: Line
    update_s: float
    output_bytes: float  # a sample
    parameter_bytes: int  # of weights and buffers

    def scaled(self, factor: float) -> "Unit":
        """Return it on a machine that takes `factor` times as long for everything."""
        return self._replace(
            forward=self.forward.scaled(factor),
            backward=self.backward.scaled(factor),
            update_s=self.update_s * factor,
        )


torch.serialization.add_safe_globals([Line, Unit])  # they travel between ranks


class Link(NamedTuple):
    """The speeds of a link: bit/s that arrive, see `of_rates`."""

    up_bps: float
    down_bps: float

    @staticmethod
    def of_rates(up_mbit: float, down_mbit: float) -> "Link":
        """Return the link that TCP makes of a line of these rates, 10^6 bit/s."""
        return Link(GOODPUT * 1e6 * up_mbit, GOODPUT * 1e6 * down_mbit)

    def up_s(self, size: float) -> float:
        """Return the seconds that `size` bytes take upwards."""
        return 8 * size / self.up_bps

    def down_s(self, size: float) -> float:
        """Return the seconds that `size` bytes take downwards."""
        return 8 * size / self.down_bps


def measure(
    units: Sequence[nn.Module],
    x: Tensor,
    y: Tensor,
    *,
    repeats: int = 5,
    threads: int = 1,
) -> list[Unit]:
    """Time a copy of the units on a batch, where they are; medians of `repeats` of each size."""
    x, y = place((x, y), nn.ModuleList(units))
    sizes = sorted({max(2, len(y) // 10), max(2, len(y) // 2), len(y)})  # of micro-batches
    stages = backprop_stages(units, F.cross_entropy, SGD)
    timed = partial(backprop_costs, stages, warmup=WARMUP, threads=threads)
    costs = [timed([(x[:n], y[:n])] * (WARMUP + repeats)) for n in sizes]
    payload, handed_on = (x, y), list[int]()
    for stage in stages[:-1]:
        payload = stage.forward(payload, 0, 0)
        handed_on.append(payload[0].nbytes)
    return [
        Unit(
            fitted(sizes, [forward_s for forward_s, _, _ in each]),
            fitted(sizes, [backward_s for _, backward_s, _ in each]),
            each[-1][-1],
            sent / len(y),
            sum(tensor.nbytes for tensor in unit.state_dict().values()),
        )
        for unit, sent, *each in zip(units, [*handed_on, 0], *costs, strict=True)
    ]
