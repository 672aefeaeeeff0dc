"""How far a run is; the same in any layout, so it may go on with another number of devices."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from alkit.elastic.decision import Decision


@dataclass
class Progress:
    """How far a run is, and what it has found.

    Attributes:
        evaluation: decisions about freezing so far.
        norms: of the layers, a row an evaluation.
        messages: all decisions.
        rows, lines: of the segments and the log.
        held: a row a segment and rank, its bytes.
        squares, since: of each layer's gradients since the last decision, and over how many steps.
    """

    epoch: int = 0
    step: int = 0
    samples: int = 0
    evaluation: int = 0
    losses: list[float] = field(default_factory=list)
    norms: list[list[float]] = field(default_factory=list)
    messages: list[Decision] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    held: list[dict[str, int]] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)
    since: int = 0

    @property
    def last(self) -> Decision | None:
        """The last decision, if there was one."""
        return self.messages[-1] if self.messages else None

    def plain(self) -> dict[str, Any]:
        """Return it as a checkpoint keeps it."""
        now = {each.name: getattr(self, each.name) for each in fields(self)}
        return now | {"messages": [decision.plain() for decision in self.messages]}

    @staticmethod
    def read(plain: Mapping[str, Any]) -> "Progress":
        """Return the progress that `plain` was made of."""
        messages = [Decision.read(each) for each in plain["messages"]]
        return Progress(**{**plain, "messages": messages})
