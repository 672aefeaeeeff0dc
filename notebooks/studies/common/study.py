"""Comparisons over seeds: Holm's rule, verdicts, tables of gaps; and the rates of their runs.

tuning    seed 100, every rate of the grid: the test part stays closed
testing   the other seeds, at the rate that was best on validation
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.optim.lr_scheduler import LambdaLR

from alkit.base import paths
from alkit.lab.compare import ENOUGH, Gap

TUNING_SEED = 100  # excluded from results; leaves the test part closed


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p values; NaN stays NaN and counts among the tests."""
    p = pd.Series(p_values, dtype=float)
    steps = p.sort_values() * np.arange(len(p), 0, -1)  # NaN last
    return steps.cummax().clip(upper=1).reindex(p.index).tolist()


def verdict(found: Gap, p: float, margin: float) -> str:
    """Say "ahead", "behind", "equal" (within the margin) or "undecided".

    Args:
        p: adjusted for all contrasts of a setting.
        margin: half the width of what counts as equal, in points.
    """
    if found.decided and p < 0.05 and not found.diverged:
        return "ahead" if found.points > 0 else "behind"
    equal = found.seeds >= ENOUGH and found.p_within(margin) < 0.05
    return "equal" if equal and not found.diverged else "undecided"


def contrast_table(gaps: Mapping[str, Gap], margin: float, **about: Any) -> pd.DataFrame:
    """Return a row a contrast: its interval, n, p, Holm's p over all rows, p of equality, verdict.

    Args:
        gaps: by the contrast's name; about: what else stands in every row.
    """
    adjusted = holm([each.p for each in gaps.values()])
    rows = [
        {**about, "contrast": name, "points (n)": str(each), "p": each.p, "p, Holm": p}
        | {f"p, within {margin}": each.p_within(margin), "verdict": verdict(each, p, margin)}
        for (name, each), p in zip(gaps.items(), adjusted, strict=True)
    ]
    return pd.DataFrame(rows)


def gap_table(gaps: Mapping[tuple[Any, ...], Gap], names: Sequence[str]) -> pd.DataFrame:
    """Return a row a gap: its key in columns of these names, its fields, whether it is decided."""
    rows = [(*key, *each, each.decided) for key, each in gaps.items()]
    return pd.DataFrame(rows, columns=[*names, *Gap._fields, "decided"])


def mean_accuracies(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return n, mean and sd of the accuracies of each group, and how many runs diverged.

    A group whose runs have no accuracy has n = 0.
    """
    own = frame[frame.metric == "accuracy"].astype({"value": float})
    made = own.groupby(list(by), sort=False).value.agg(n="count", mean="mean", sd="std")
    lost = frame[frame.metric == "diverged"].astype({"value": bool})
    made = made.join(lost.groupby(list(by)).value.sum().rename("diverged"), how="outer")
    return made.assign(n=made.n.fillna(0).astype(int))


def published(name: str) -> pd.DataFrame:
    """Return published numbers, `notebooks/results/published/<name>.csv`, with their source."""
    return pd.read_csv(paths.root() / "notebooks/results/published" / f"{name}.csv")


def share(epoch: int, *, epochs: int, end: float = 0.1) -> float:
    """Return what an epoch, from 0, has of the first rate: a cosine down to `end` of it."""
    q = (1 + math.cos(math.pi * epoch / epochs)) / 2
    return q + end * (1 - q)


def cosine(epochs: int, end: float = 0.1) -> Callable[[torch.optim.Optimizer], LambdaLR]:
    """Return what makes a scheduler that falls by a cosine to `end` of the first rate."""
    return partial(LambdaLR, lr_lambda=partial(share, epochs=epochs, end=end))
