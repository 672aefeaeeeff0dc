"""Delayed gradients as the loop runs them: the pipeline is emptied after every epoch."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from alkit.delayed.modules import Pipeline
from alkit.delayed.train import Trained, train_epoch
from alkit.engine import trainer


@dataclass
class Trainer(trainer.Trainer):
    """A pipeline, and how an epoch of it is run.

    Args:
        settings: of `alkit.delayed.train_epoch`: micro, threads, seed, rate, ...
    """

    model: Pipeline
    method: str = "pipedream"
    executor: str = "single"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The method."""
        return self.method

    @property
    def loss(self) -> Callable[[Any, Tensor], Tensor]:
        """The pipeline's loss."""
        return self.model.loss_fn

    def train(self, batches: Iterable[tuple[Any, Tensor]]) -> Trained:
        """Train once on every batch."""
        return train_epoch(self.model, batches, self.method, self.executor, **self.settings)
