"""What blocks cost: what cuts, plans and simulations are computed from."""

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
