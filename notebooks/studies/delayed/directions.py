"""How far does a method's direction lie from true backprop's?"""

from collections.abc import Iterable
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from alkit.delayed.modules import Pipeline
from studies.delayed.recursion import Gradients, recursion


def directions(
    pipeline: Pipeline, batches: Iterable[tuple[Any, Any]], method: str, **settings: Any
) -> pd.DataFrame:
    """Train by the method's recursion and compare every update with true backprop.

    Returns:
        A row a batch and module: cosine between the method's gradient and backprop's at the newest
        weights of all modules, and sigma = <g, true> / <true, true>, which theory wants above 0.
    """
    rows: list[tuple[int, int, float, float]] = []

    def watch(batch: int, found: Gradients, true: Gradients) -> None:
        for module, (one, other) in enumerate(zip(found, true, strict=True)):
            a, b = _flat(one), _flat(other)
            product, square = float(a @ b), float(b @ b)
            if square > 0:
                cosine = product / (float(a.norm()) * square**0.5 + 1e-30)
                rows.append((batch, module, cosine, product / square))

    recursion(pipeline, batches, method, watch=watch, **settings)
    return pd.DataFrame(rows, columns=["batch", "module", "cosine", "sigma"])


def _flat(gradients: list[Tensor | None]) -> Tensor:
    given = [gradient.flatten() for gradient in gradients if gradient is not None]
    return torch.cat(given).double() if given else torch.zeros(1, dtype=torch.float64)
