"""What blocks cost: what cuts, plans and simulations are computed from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BlockCost:
    """What a block, or an AL layer, costs.

    Attributes:
        forward_s, backward_s, update_s: seconds per batch.
        output_bytes: handed to the next block; back-propagated gradients are as large.
        saved_bytes: kept from forward to backward.
        parameter_bytes: without gradients and optimiser states.
    """

    forward_s: float
    backward_s: float
    update_s: float
    output_bytes: int = 0
    saved_bytes: int = 0
    parameter_bytes: int = 0

    @property
    def seconds(self) -> float:
        """Forward, backward and update."""
        return self.forward_s + self.backward_s + self.update_s


def durations(costs: Sequence[BlockCost]) -> Mapping[tuple[str, int], float]:
    """Return the costs as `alkit.schedule.clock.simulate` takes them: seconds by (kind, stage)."""
    return {
        (kind, stage): getattr(cost, f"{kind}_s")
        for stage, cost in enumerate(costs)
        for kind in ("forward", "backward", "update")
    }
