"""Fit a pipeline on a data set: epochs, each drained at its end, validation, one look at test."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from alkit.data.parts import DataSet, Part
from alkit.delayed.modules import Pipeline
from alkit.delayed.train import train_epoch

__all__ = ["Fitted", "evaluate", "fit"]


@dataclass(frozen=True)
class Fitted:
    """What `fit` leaves behind; the pipeline has the weights of its last epoch.

    Attributes:
        history: a row an epoch: epoch from 1, loss (mean), val_acc, seconds.
        test_correct: float (N,) on the test part after the epoch that is best on validation.
        best_epoch: from 1; 0, the untrained network, if the first epoch did not end.
        diverged: whether a loss was not finite; the run ends there.
    """

    history: pd.DataFrame
    test_correct: Tensor
    best_epoch: int
    diverged: bool

    @property
    def test_acc(self) -> float:
        """Share of the test part that is right."""
        return self.test_correct.mean().item()


def fit(
    pipeline: Pipeline,
    data: DataSet,
    method: str,
    *,
    epochs: int,
    batch_size: int = 128,
    seed: int = 0,
    augment: str = "none",
    rate: Callable[[int], float] | None = None,
    executor: str = "single",
    progress: bool = True,
) -> Fitted:
    """Train for some epochs; what can't go on ends early, as diverged.

    Args:
        data: images; its training part's last, smaller batch is dropped.
        rate, executor: see `alkit.delayed.train_epoch`.
    """
    rows, best, kept, best_epoch = [], -1.0, _copied(pipeline), 0
    diverged = False
    bar = tqdm(range(1, epochs + 1), desc=method, disable=not progress, leave=False)
    for epoch in bar:
        batches = data.train.batches(
            batch_size, seed=seed, epoch=epoch, drop_last=True, augment=augment
        )
        try:
            record = train_epoch(pipeline, batches, method, executor, seed=seed, rate=rate)
        except FloatingPointError:
            diverged = True
            break
        accuracy = evaluate(pipeline, data.validation).mean().item()
        rows.append((epoch, record.losses.mean().item(), accuracy, record.seconds))
        bar.set_postfix(val=f"{100 * accuracy:.1f} %")
        if accuracy > best:
            best, best_epoch, kept = accuracy, epoch, _copied(pipeline)
    last = _copied(pipeline)
    pipeline.load_state_dict(kept)
    correct = evaluate(pipeline, data.test)
    pipeline.load_state_dict(last)
    return Fitted(_history(rows), correct, best_epoch, diverged)


@torch.no_grad()
def evaluate(pipeline: Pipeline, part: Part, batch_size: int = 500) -> Tensor:
    """Return which samples are classified correctly: float (N,), 0 or 1; the mode is restored."""
    before = pipeline.training
    pipeline.eval()
    try:
        found = [
            (pipeline(x).argmax(1) == y.argmax(1)).float()
            for x, y in part.batches(batch_size, shuffle=False)
        ]
    finally:
        pipeline.train(before)
    return torch.cat(found)


def _copied(pipeline: Pipeline) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in pipeline.state_dict().items()}


def _history(rows: list[tuple[int, float, float, float]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["epoch", "loss", "val_acc", "seconds"])
