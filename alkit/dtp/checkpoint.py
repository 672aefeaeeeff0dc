"""A run's file: all that training changes, how far it is, and what makes it this run."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from alkit.data.parts import DataSet
from alkit.dtp.trainer import Trainer
from alkit.engine import checkpoint as checkpoints

__all__ = ["Progress", "restore", "save"]


@dataclass
class Progress:
    """How far a run is, and what it has found."""

    epoch: int = 0
    step: int = 0
    losses: list[float] = field(default_factory=list)
    feedback_losses: dict[str, list[Tensor]] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    angles: list[dict[str, Any]] = field(default_factory=list)


def save(path: Path, trainer: Trainer, data: DataSet, progress: Progress) -> None:
    """Write a run from rank 0; every rank calls it."""
    state = trainer.state()
    if trainer.group.rank == 0:
        now = {each.name: getattr(progress, each.name) for each in fields(progress)}
        checkpoints.save(path, state | {"settings": _identity(trainer, data), "progress": now})


def restore(path: Path, trainer: Trainer, data: DataSet) -> Progress:
    """Put a run back into its trainer, and return how far it was.

    Raises:
        ValueError: another run's file; names the setting.
    """
    saved = checkpoints.load(path)
    checkpoints.check_settings(path, saved.get("settings", {}), _identity(trainer, data))
    trainer.load(saved)
    return Progress(**saved["progress"])


def _identity(trainer: Trainer, data: DataSet) -> dict[str, Any]:
    """Return what makes a run another one."""
    own = {"network": str(trainer.net.blocks), "data": data.name, "train": len(data.train)}
    return trainer.settings.plain() | own
