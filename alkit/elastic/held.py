"""The bytes that a rank holds while it trains, by part.

    weights        of the active units of its stage
    frozen         weights of the frozen units that it runs
    gradients      of its weights
    moments        of its weights
    activations    what autograd keeps for the backward, of all micro-batches that are under way
    message        gradients on their way to the other replicas; there are none without

When gradients travel no activations are left, so the larger of both counts. What an operator needs
while it runs, a batch's inputs and stored features are not counted.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Held:
    """The bytes of one rank, by part."""

    weights: int
    frozen: int
    gradients: int
    moments: int
    activations: int
    message: int

    @property
    def total(self) -> int:
        """The most at one time."""
        stays = self.weights + self.frozen + self.gradients + self.moments
        return stays + max(self.activations, self.message)

    def plain(self) -> dict[str, int]:
        """Return the parts and the total by name."""
        return asdict(self) | {"total": self.total}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:,}" for name, value in asdict(self).items() if value)


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors, each once; of sparse ones those of their values."""
    found = {id(own): own._values() if own.is_sparse else own for own in tensors}
    return sum(own.nbytes for own in found.values())
