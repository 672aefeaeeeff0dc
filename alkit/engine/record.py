"""What training leaves behind, whatever the method."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from torch import Tensor

from alkit.base.arguments import Brief
from alkit.schedule.timeline import Timeline


@dataclass(frozen=True, repr=False)
class Record(Brief):
    """What a run left.

    Attributes:
        model: trained; it has the weights of its best epoch.
        history: a row an epoch, and what was measured in it.
        losses: of the last epoch, (batches, stages, parts); of methods that keep one loss a step,
            of all steps, (steps, 1, 1).
        timeline: of the last epoch.
        test_correct: float (N,) on the test part, of the best epoch; None without one, or where
            targets are no classes.
        metrics: what was measured on the test part: "accuracy", or "loss" where targets are no
            classes, and metrics of your own.
        best_epoch: by validation accuracy (or loss), the first if several are equal; from 1. The
            last one without a validation part; 0 if the first epoch did not end.
        stopped_early: whether a callback ended it before the epochs.
        seconds: of all epochs of this call.
        settings: by name, what the run was asked for.
        details: the method's own record.
        made: how the model was made, see `alkit.save`.
        classes: their names, where the data have some.
    """

    model: Any
    history: pd.DataFrame
    losses: Tensor | None = None
    timeline: Timeline | None = None
    test_correct: Tensor | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    best_epoch: int = 0
    stopped_early: bool = False
    seconds: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    details: Any = None
    made: Mapping[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] = ()

    @property
    def test_acc(self) -> float | None:
        """Share of the test part that is right, 0 to 1; None without one."""
        return None if self.test_correct is None else self.test_correct.mean().item()

    def predict(self, x: Any) -> Tensor:
        """Return scores (B, C) of the trained model."""
        return self.model.predict(x)
