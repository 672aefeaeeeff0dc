"""Choose cut and micro-batches for devices as they come, and anew when a link has changed.

    device   ... clock   load (1 MiB)    load received         profile (its units, downlink)
    server                 uplink timed      load (1 MiB)         candidates -> cut, micro

After each round the transfers that were seen tell each link's speed; a change of more than a tenth
is a reason to plan again. Another cut begins with fresh optimisers on both sides.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from alkit.split.planner import Candidate, Workload, best, candidates, moved
from alkit.split.profile import Link, Machine
from alkit.split.rounds import RoundRecord

log = logging.getLogger(__name__)
LEAST_BYTES = 1 << 16  # seen on a link in a round before its speed is believed


class Choosing:
    """The planner of one run.

    Args:
        server: profile of the server.
        workloads: of each device.
        given: the links' speeds, if they are not to be probed; None for a device whose are.
    """

    def __init__(
        self,
        server: Machine,
        workloads: Sequence[Workload],
        given: Sequence[Link | None] | None = None,
    ) -> None:
        self.server, self.workloads = server, list(workloads)
        self.given = list(given) if given is not None else [None] * len(self.workloads)
        self.machines: dict[int, Machine] = {}
        self.links: dict[int, Link] = {}
        self.chosen: dict[int, Candidate] = {}

    def first(self, device: int, machine: Machine, probed: Link) -> tuple[int, int]:
        """Return cut and micro-batches for a device that has come."""
        self.meet(device, machine, probed)
        return self._plan(device)

    def meet(self, device: int, machine: Machine, probed: Link) -> None:
        """Remember what a device says; its choice stays as it is until its link changes."""
        self.machines[device] = machine
        self.links[device] = self.given[device] or probed

    def again(self, device: int, record: RoundRecord) -> tuple[int, int] | None:
        """Return another choice if the device's link has changed, else None."""
        if device not in self.machines:
            return None
        before = self.links[device]
        up, down = (goodput(record, f"{lane} {device}") for lane in ("uplink", "downlink"))
        now = replace(before, up_bps=up or before.up_bps, down_bps=down or before.down_bps)
        if not moved(before, now):
            return None
        self.links[device] = now
        return self._plan(device)

    def _plan(self, device: int) -> tuple[int, int]:
        link = self.links[device]
        found = candidates(self.machines[device], self.server, link, self.workloads[device])
        self.chosen[device] = one = best(found)
        said = f"{link.up_bps / 1e6:.1f} Mbit/s up, {link.down_bps / 1e6:.1f} down"
        plan = f"cut after {one.cut} units, {one.micro} micro-batches"
        log.info("device %d: %s: %s, %.3f s per iteration", device, said, plan, one.iteration_s)
        return one.cut, one.micro


def goodput(record: RoundRecord, lane: str) -> float | None:
    """Return the bit/s that a link carried while it was busy; None if it carried too little."""
    own = [i for i in record.intervals if i.resource == lane and i.kind == "send"]
    size, busy_s = sum(i.bytes for i in own), sum(i.end_s - i.start_s for i in own)
    return 8 * size / busy_s if size >= LEAST_BYTES and busy_s > 0 else None
