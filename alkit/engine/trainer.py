"""What a method gives to the loop over epochs.

A trainer knows one method and nothing of data sets, files or progress bars.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from alkit.data.given import Source, Splits
from alkit.engine import checkpoint as checkpoints
from alkit.engine.evaluate import Judged, Metrics, judge
from alkit.schedule.timeline import Timeline

Row = dict[str, Any]


class Trained(Protocol):
    """What a trainer says of an epoch: losses (batches, ...), timeline, wall seconds."""

    @property
    def losses(self) -> Tensor: ...
    @property
    def timeline(self) -> Timeline: ...
    @property
    def seconds(self) -> float: ...


class Trainer(Protocol):
    """What a method gives to the loop; what it does not say is as it stands here.

    Attributes:
        model: what is trained.
    """

    model: Any

    @property
    def name(self) -> str:
        """Of the method, for people."""

    def batches(self, plan: Any, train: Source, epoch: int) -> Iterable[tuple[Any, Any]]:
        """Return the epoch's batches, by the loop's `Plan`."""
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

    def measure(self, data: Splits) -> Row:
        """Return what else this method looks at after an epoch."""
        return {}

    def shown(self, trained: Any) -> dict[str, float]:
        """Return the losses that the progress bar shows."""
        return {"loss": trained.losses.mean().item()}

    def named_optimizers(self) -> dict[str, torch.optim.Optimizer | None]:
        """Return the optimisers whose rates follow the plan."""
        return self.model.named_optimizers()

    def state(self) -> dict[str, Any]:
        """Return all that training changes, "model" and "optimizers" in it; all ranks call it."""
        return checkpoints.snapshot(self.model)

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        checkpoints.restore(self.model, saved)
