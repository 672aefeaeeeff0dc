"""A run's file: all that training changes, how far it is, and what makes it this run.

It is the same in any layout, so a run may go on with another number of devices.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from alkit.elastic.decision import Decision
from alkit.elastic.trainer import Trainer
from alkit.engine import checkpoint as checkpoints

__all__ = ["Progress", "restore", "save"]


@dataclass
class Progress:
    """How far a run is, and what it has found.

    Attributes:
        position: samples of the epoch that are done.
        evaluation: decisions about freezing so far.
        norms: of the layers, a row an evaluation.
        messages: all decisions.
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
    messages: list[Decision] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)
    since: int = 0

    @property
    def last(self) -> Decision | None:
        """The last decision, if there was one."""
        return self.messages[-1] if self.messages else None

    def turn(self, samples: int, batch: int) -> None:
        """Begin the next epoch if what is left of this one's samples does not fill a batch."""
        if samples - self.position < batch:
            self.epoch, self.position = self.epoch + 1, 0


def save(path: Path, trainer: Trainer, progress: Progress) -> None:
    """Write a run from rank 0; every rank calls it."""
    state = trainer.state()
    if trainer.world.is_first:
        now = {each.name: getattr(progress, each.name) for each in fields(progress)}
        now["messages"] = [decision.plain() for decision in progress.messages]
        settings = trainer.settings.plain()
        checkpoints.save(path, state | {"progress": now, "settings": settings})


def restore(path: Path, trainer: Trainer) -> Progress:
    """Put a run back into its trainer, and return how far it was.

    Raises:
        ValueError: damaged, or of a run with other settings; names the first that differs.
    """
    saved = checkpoints.load(path)
    checkpoints.check_settings(path, saved["settings"], trainer.settings.plain())
    now = dict(saved["progress"])
    now["messages"] = [Decision.read(each) for each in now["messages"]]
    progress = Progress(**now)
    if progress.last is not None:
        trainer.freeze(progress.last.frozen)
    trainer.load(saved)
    return progress
