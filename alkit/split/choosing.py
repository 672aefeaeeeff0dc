"""Choose cut and micro-batches for devices as they come.

device   ... clock   load (1 MiB)    load received         profile (its units, downlink)
server                 uplink timed      load (1 MiB)         candidates -> cut, micro
"""

import logging
from collections.abc import Sequence

from alkit.split.planner import Workload, best, candidates
from alkit.split.profile import Link, Machine

log = logging.getLogger(__name__)


class Choosing:
    """The planner of one run.

    Args:
        server: profile of the server.
        workloads: of each device.
        given: the links' speeds, if they are not to be probed.
    """

    def __init__(
        self, server: Machine, workloads: Sequence[Workload], given: Link | None = None
    ) -> None:
        self.server, self.workloads, self.given = server, list(workloads), given

    def choose(self, device: int, machine: Machine, probed: Link) -> tuple[int, int]:
        """Return cut and micro-batches for a device that has come."""
        link = self.given or probed
        one = best(candidates(machine, self.server, link, self.workloads[device]))
        said = f"{link.up_bps / 1e6:.1f} Mbit/s up, {link.down_bps / 1e6:.1f} down"
        plan = f"cut after {one.cut} units, {one.micro} micro-batches"
        log.info("device %d: %s: %s, %.3f s per iteration", device, said, plan, one.iteration_s)
        return one.cut, one.micro
