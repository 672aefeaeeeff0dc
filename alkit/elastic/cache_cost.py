"""Whether to store features: three ways, the cheapest by measured times.

    none       V F(b)                                      run the frozen layers at every visit
    fill       F(b) + W + (V - 1) R                        run them once, store, read from then on
    advance    R + F(a..b) + W + (V - 1) R                 read older features, run what is new

F: forward of frozen layers; R, W: reading and writing that training waits for; V: visits of a
sample that are still to come, this one included. Layers that will be frozen later change nothing:
whatever is stored now saves what lies below it then, too.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import torch

from alkit.data import tree
from alkit.elastic.network import Network
from alkit.engine.device import place, wait_for


@dataclass(frozen=True)
class Times:
    """Seconds of a batch.

    Attributes:
        forward_s: of all frozen layers.
        new_s: of those that the older features have not seen; None without older features.
        read_s, write_s: of features.
    """

    forward_s: float
    new_s: float | None
    read_s: float
    write_s: float


class Cheapest(NamedTuple):
    """What to do, and the seconds that each way would take for all visits of a batch."""

    way: str
    seconds: dict[str, float]

    @property
    def stores(self) -> bool:
        """Whether features are stored."""
        return self.way != "none"


def cheapest(times: Times, visits: int) -> Cheapest:
    """Return the cheapest way for `visits` visits of each sample."""
    later = (visits - 1) * times.read_s
    seconds = {
        "none": visits * times.forward_s,
        "fill": times.forward_s + times.write_s + later,
    }
    if times.new_s is not None:
        seconds["advance"] = times.read_s + times.new_s + times.write_s + later
    return Cheapest(min(seconds, key=lambda way: seconds[way]), seconds)


def measure(network: Network, x: Any, *, before: int = 0, repeats: int = 5) -> Times:
    """Return the median times of a batch; reading and writing are copies in the host's memory.

    On an accelerator a copy to it, or from it, belongs to them.

    Args:
        x: raw inputs of a batch.
        before: layers whose features are stored already; 0 for none.
    """
    x = place(x, network)
    features = next(tree.tensors(network.prefix(x)))
    device, stored = features.device, features.cpu()
    rows, room = torch.randperm(len(stored)), torch.empty_like(stored)

    def seconds(run: Callable[[], Any]) -> float:
        return median(_seconds(run, device) for _ in range(repeats))

    forward_s = seconds(lambda: network.prefix(x))
    new_s = None
    if before:
        low = network.first(before)
        old = network.prefix(x, 0, low)
        new_s = seconds(lambda: network.prefix(old, low))
    read_s = seconds(lambda: stored[rows].to(device))
    write_s = seconds(lambda: room.index_copy_(0, rows, features.cpu()))
    return Times(forward_s, new_s, read_s, write_s)


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    start_s = time.perf_counter()
    run()
    wait_for(device)
    return time.perf_counter() - start_s
