"""A learning rate chosen on validation: `alkit.tune`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pandas as pd
import torch
from tqdm.auto import tqdm

from alkit.data.arguments import Brief
from alkit.records.fit import fit

GRID = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


@dataclass(frozen=True, repr=False)
class Tuned(Brief):
    """What `tune` found.

    Attributes:
        lr: the rate of the best epoch on validation; of equals the lowest.
        table: a row a rate: lr, the value of its best epoch, that epoch, whether it diverged.
        value: the column that was compared, "val_acc" or "val_loss".
        at_end: whether the best rate is the lowest or highest of the grid: look beyond it.
    """

    lr: float
    table: pd.DataFrame
    value: str
    at_end: bool

    def plot(self) -> Any:
        """Return a figure of the values by rate."""
        return import_module("alkit.figures.show").rates(self)

    def _repr_html_(self) -> str:
        return import_module("alkit.figures.show").rates_page(self)


def tune(
    make: Callable[[], Any],
    train: Any,
    validation: Any,
    *,
    lr: Sequence[float] = GRID,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> Tuned:
    """Train a fresh model at each rate and choose by the best epoch on validation.

    Compare methods with seeds other than this one, and each at its own rate: AL on attention takes
    about ten times backprop's.

    Args:
        make: makes a model; each call gets the same random numbers.
        lr: the rates to try.
        options: of `alkit.fit`: method, epochs, batch_size, ...
    Raises:
        ValueError: no rates, no validation part, or a loss that is finite at none of them.

    Example:
        >>> import torch, alkit
        >>> x = torch.randn(64, 8)
        >>> data = x, x.argmax(1)
        >>> make = lambda: torch.nn.Sequential(torch.nn.Linear(8, 8))
        >>> found = alkit.tune(make, data, data, lr=[1e-6, 0.1], method="bp", progress=False)
        >>> found.lr
        0.1
    """
    rates = sorted(map(float, lr))
    if not rates or validation is None:
        raise ValueError(f"lr is {list(lr)}, validation {validation}: give rates, and a part")
    rows = []
    for rate in tqdm(rates, desc="rates", disable=not progress, leave=False):
        torch.manual_seed(seed)
        own = {"lr": rate, "seed": seed, "progress": False}
        rows.append({"lr": rate} | _best(make(), train, validation, **options, **own))
    table = pd.DataFrame(rows)
    value = "val_acc" if "val_acc" in table else "val_loss"
    if value not in table or not table[value].notna().any():
        raise ValueError(f"the loss is finite at none of the rates {rates}: give lower ones")
    worth = table[value] if value == "val_acc" else -table[value]
    at = int(worth.idxmax())
    return Tuned(rates[at], table, value, at_end=len(rates) > 1 and at in (0, len(rates) - 1))


def _best(model: Any, *parts: Any, **options: Any) -> dict[str, Any]:
    """Return the best epoch's value; none of a run whose loss was not finite."""
    try:
        record = fit(model, *parts, **options)
    except FloatingPointError:
        return {"epoch": 0, "diverged": True}
    row = record.history.iloc[record.best_epoch - 1]
    name = "val_acc" if "val_acc" in row else "val_loss"
    worth = float(row[name]) if math.isfinite(row[name]) else math.nan
    return {"epoch": record.best_epoch, "diverged": False, name: worth}
