"""How long an iteration takes: the longest path through its four lanes, by a short recurrence.

For micro-batch i, with F, U, S, D, R the ends of forward on the device, upload, server, download
and backward on the device (PiPar, Zhang et al. 2024, in our notation):

    F_i = F_(i-1) + f                       forwards run back to back
    U_i = max(F_i, U_(i-1)) + u             the uplink carries one after the other
    S_i = max(U_i, S_(i-1)) + s   forward and backward of the tail
    D_i = max(S_i, D_(i-1)) + d
    R_i = max(D_i, R_(i-1)) + b   with R_0 = F_N

Each of them is a line in the number of samples: small micro-batches cost more a sample.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Line(NamedTuple):
    """Seconds of n samples: fixed + each * n."""

    fixed: float = 0.0
    each: float = 0.0

    def at(self, samples: int) -> float:
        """Return the seconds that `samples` samples take."""
        return self.fixed + self.each * samples

    def scaled(self, factor: float) -> "Line":
        """Return the line of a machine that takes `factor` times as long."""
        return Line(self.fixed * factor, self.each * factor)

    @staticmethod
    def total(lines: "Sequence[Line]") -> "Line":
        """Return the line of one after the other."""
        return Line(sum(own.fixed for own in lines), sum(own.each for own in lines))


class Times(NamedTuple):
    """The lines of one cut, and the seconds of an optimiser step on each side."""

    forward: Line  # of the head, on the device
    up: Line  # activations and labels
    server: Line  # forward and backward of the tail
    down: Line  # gradients
    backward: Line  # of the head
    update: float = 0.0
    server_update: float = 0.0


def iteration_s(times: Times, sizes: Sequence[int]) -> float:
    """Return the seconds of an iteration with micro-batches of these sizes."""
    forward = up = down = 0.0
    server = times.server_update  # of the iteration before: see `schedule`
    downs = []
    for size in sizes:
        forward += times.forward.at(size)
        up = max(forward, up) + times.up.at(size)
        server = max(up, server) + times.server.at(size)
        down = max(server, down) + times.down.at(size)
        downs.append(down)
    end = forward
    for size, arrived in zip(sizes, downs, strict=True):
        end = max(arrived, end) + times.backward.at(size)
    return end + times.update


def lower_bound_s(times: Times, samples: int) -> float:
    """Return a bound for any number of micro-batches: the work of the busiest lane.

    Fixed costs count once, so for large fixed costs the bound is loose.
    """
    device = times.forward.at(samples) + times.backward.at(samples) + times.update
    server = times.server.at(samples) + times.server_update
    return max(device, times.up.at(samples), server, times.down.at(samples))


def fitted(samples: Sequence[int], seconds: Sequence[float]) -> Line:
    """Fit a line by least squares; neither part is below 0."""
    n, s = np.array(samples, dtype=float), np.array(seconds)
    spread = ((n - n.mean()) ** 2).sum()
    each = max(0.0, (n - n.mean()) @ (s - s.mean()) / spread) if spread else s.mean() / n.mean()
    fixed = s.mean() - each * n.mean()
    # below 0, the best line is one through the origin
    return Line(float(fixed), float(each)) if fixed >= 0 else Line(0.0, float(n @ s / (n @ n)))
