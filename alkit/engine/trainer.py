"""What a method gives to the loop over epochs, and what training leaves behind.

A trainer knows one method and nothing of data sets, files or progress bars.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pandas as pd
import torch
from torch import Tensor

from alkit.base.arguments import Brief
from alkit.data.given import Source
from alkit.engine import checkpoint as checkpoints
from alkit.engine.evaluate import Judged, Metrics, judge
from alkit.schedule.timeline import Timeline

Row = dict[str, Any]


@dataclass(frozen=True, repr=False)
class Trained(Brief):
    """What an epoch came to: losses (batches, ...), the timeline of all workers, wall seconds."""

    losses: Tensor
    timeline: Timeline
    seconds: float


class Trainer(Protocol):
    """What a method gives to the loop; what it does not say is as it stands here."""

    model: Any

    def batches(self, plan: Any, train: Source, epoch: int) -> Iterable[tuple[Any, Any]]:
        """Return the epoch's batches, by a `Plan`."""
        return plan.batches(train, epoch)

    def train(self, batches: Iterable[tuple[Any, Tensor]]) -> Trained:
        """Train once on every batch."""

    @property
    def loss(self) -> Callable[[Any, Tensor], Tensor]:
        """The loss of (scores, y) that the scores are trained by, as it was given."""

    def judge(self, part: Source, metrics: Metrics | None) -> Judged:
        """Return what the model is worth on a part."""
        return judge(self.model, part, loss=self.loss, metrics=metrics)

    def row(self, trained: Any) -> Row:
        """Return the columns of the history that this method has a word on."""
        return {}

    def gather(self) -> None:
        """Bring the model's parts together, where ranks hold some of it; all ranks call it."""
        return

    def named_optimizers(self) -> dict[str, torch.optim.Optimizer | None]:
        """Return the optimisers whose rates follow the plan."""
        return self.model.named_optimizers()

    def state(self) -> dict[str, Any]:
        """Return all that training changes, "model" and "optimizers" in it; all ranks call it."""
        return checkpoints.snapshot(self.model)

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        checkpoints.restore(self.model, saved)


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
