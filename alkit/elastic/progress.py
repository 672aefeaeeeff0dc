"""How far a run has come: what a checkpoint holds beside weights and moments."""

from dataclasses import dataclass, field
from typing import Any

from alkit.elastic.message import Transform

__all__ = ["Progress"]


@dataclass
class Progress:
    """The state of a run.

    Attributes:
        position: samples of the epoch that are done.
        evaluation: decisions about freezing so far.
        norms: of the layers, a row an evaluation.
        rows, lines: of the history and the log.
        squares, since: of each layer's gradients since the last decision, and over how many steps.
    """

    epoch: int = 0
    position: int = 0
    step: int = 0
    samples: int = 0
    evaluation: int = 0
    losses: list[float] = field(default_factory=list)
    norms: list[list[float]] = field(default_factory=list)
    messages: list[Transform] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)
    since: int = 0

    @property
    def last(self) -> Transform | None:
        """The last decision, if there was one."""
        return self.messages[-1] if self.messages else None
