"""What rank 0 decides before a segment, and every rank obeys."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from alkit.elastic.layout import Layout


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One decision.

    Attributes:
        layout: the layout from now on.
        number: of the decision, from 0.
        epoch, step, samples: when.
        cached: whether outputs of the frozen layers are stored.
        generation: of the store: how often the frozen layers have changed.
        norms: gradient norms of all layers since the decision before; none at the first.
    """

    layout: Layout
    number: int
    epoch: int
    step: int
    samples: int
    cached: bool
    generation: int
    norms: list[float]

    @property
    def frozen(self) -> int:
        """Layers that are frozen from now on."""
        return self.layout.frozen

    def plain(self) -> dict[str, Any]:
        """Return it as names, numbers and tuples."""
        return asdict(self)

    @staticmethod
    def read(plain: Mapping[str, Any]) -> "Decision":
        """Return the decision that `plain` was made of."""
        return Decision(**{**plain, "layout": Layout(**plain["layout"])})
