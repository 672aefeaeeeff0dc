"""Evaluate a model on a part: how many samples it has right, or its loss, and own metrics."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alkit.base import tree
from alkit.base.arguments import given
from alkit.data.given import as_source
from alkit.data.labels import are_shares
from alkit.engine.losses import Loss, loss_of, options_of, weight
from alkit.engine.random import noise_of

Metrics = Mapping[str, Callable[[Any, Tensor], Any]]


@dataclass(frozen=True)
class Judged:
    """The measurements on a part."""

    correct: Tensor | None = None  # samples that are right, float (N,); of classes only
    scores: Any = None  # (N, C), where a sample has a row of them
    values: dict[str, float] = field(default_factory=dict)  # "accuracy" of classes, "loss"; own

    def columns(self) -> dict[str, float]:
        """Return the values as columns of a history: val_acc, val_loss, val_NAME."""
        return {f"val_{'acc' if n == 'accuracy' else n}": own for n, own in self.values.items()}


def right(scores: Tensor, y: Tensor, *, ignored: int = -100) -> Tensor:
    """Return which samples are right, float (B,): 1 where the label has the highest score.

    With a class for each pixel or token, the share of them that is right; NaN where none counts.

    Args:
        scores: (B, C); or (B, C, ...), or (B, ..., C), where y has a class for each place.
        y: class numbers (B,) or (B, ...), or rows (B, C) of shares, whose highest one is the class.
    """
    if (found := _classes(scores, y)) is None:
        raise ValueError(
            f"targets {tuple(y.shape)} of {y.dtype} are no classes, so no sample is right or wrong:"
            " compare predict(x) with them, or fit one of torch's losses by its name"
        )
    classes, axis = found
    # scores that aren't numbers are wrong answers, whatever the highest of them is
    hits = (scores.argmax(axis) == classes) & ~scores.isnan().any(axis)
    scored = (classes != ignored) & (classes >= 0) & (classes < scores.shape[axis])
    hit, counted = (each.reshape(len(y), -1) for each in (hits, scored))
    return (hit & counted).sum(1) / counted.sum(1)


def _classes(scores: Any, y: Any) -> tuple[Tensor, int] | None:
    """Return class numbers and the scores' axis of classes; None if y has no class a place."""
    if not isinstance(scores, Tensor) or not isinstance(y, Tensor):
        return None  # several targets a sample, for a loss of one's own
    if y.is_floating_point() and y.dim() == 2 and y.shape[1] > 1 and are_shares(y):
        y = y.argmax(1)
    if y.is_floating_point() or y.dtype == torch.bool or scores.dim() != y.dim() + 1:
        return None
    if scores.shape[:1] + scores.shape[2:] == y.shape:
        return y, 1
    return (y, -1) if scores.shape[:-1] == y.shape else None


def evaluate(model: Any, part: Any, *, depth: int | None = None, batch_size: int = 512) -> Tensor:
    """Return which samples of `part` are right, in its order: float (N,), see `right`.

    Args:
        part: a `Part`, tensors (x, y), a Dataset, or an iterable of batches.
        depth: leave an ALModel at this layer; default the full path.
    """
    options = {} if depth is None else {"depth": depth}
    found = _scored(model, part, batch_size, **options)
    return torch.cat([right(scores, y) for scores, y in found])


@torch.no_grad()
def _scored(model: Any, part: Any, batch_size: int, **options: Any) -> Iterator[tuple[Any, Tensor]]:
    """Yield scores and targets of every batch, on the CPU."""
    torch.clear_autocast_cache()  # a context of the caller's holds casts of other weights
    for x, y in as_source(part).batches(batch_size, shuffle=False):
        yield tree.to_device((model.predict(x, **options), y), "cpu")


@torch.no_grad()
def judge(
    model: Any,
    part: Any,
    *,
    loss: Loss,
    metrics: Metrics | None = None,
    batch_size: int = 512,
) -> Judged:
    """Return the results of a model on a part: its loss, of classes its accuracy, own metrics.

    Targets are classes if they are numbers of one of several scores, or rows of shares, unless the
    loss takes each column for itself. Labels that the loss ignores don't count. Metrics are of
    (scores, y) of the whole part on the CPU, y class numbers (N,) or the targets as they are.
    """
    options, kind = options_of(loss)
    classes, hits, kept = False, list[Tensor](), list[tuple[Any, Tensor]]()
    losses, weights = list[float](), list[float]()
    for scores, y in _scored(model, part, batch_size):
        with noise_of(loss, "judged", len(losses)):
            value = float(loss_of(loss, scores, y))
        scores = getattr(scores, "logits", scores)
        if not losses:
            found = None if by_column(loss) else _classes(scores, y)
            classes = found is not None and scores.shape[found[1]] > 1
        losses.append(value)
        weights.append(1.0 if options.get("reduction") == "sum" else weight(y, options, kind))
        if classes:
            hits.append(right(scores, y, ignored=options.get("ignore_index", -100)))
        if metrics or (isinstance(scores, Tensor) and scores.dim() == 2):
            kept.append(tree.map_tensors(_wide, (scores, y)))
    total = sum(own * each for own, each in zip(losses, weights, strict=True) if each)
    values = {
        "loss": total if options.get("reduction") == "sum" else total / (sum(weights) or math.nan)
    }
    correct = torch.cat(hits) if classes else None
    if correct is not None:
        values = {"accuracy": correct.nanmean().item()} | values
    whole = [tree.joined(each) for each in zip(*kept, strict=True)]
    if metrics:
        scores, targets = whole
        numbers = _classes(scores, targets) if classes else None
        targets = targets if numbers is None else numbers[0]
        values |= {name: _number(name, own(scores, targets)) for name, own in metrics.items()}
    return Judged(correct, whole[0] if whole else None, values)


def by_column(loss: Loss) -> bool:
    """Say whether a loss takes every column of the targets for itself."""
    return any(word in str(loss) for word in ("binary_cross_entropy", "BCE"))


def _number(name: str, value: Any) -> float:
    if value is None or math.prod(np.shape(value)) != 1:
        raise ValueError(f"metric {name!r} makes {given(value)}: return one number")
    return float(value)


def _wide(tensor: Tensor) -> Tensor:
    """Return numbers that numpy has, too."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
