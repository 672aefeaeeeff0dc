"""Seconds of a step, in one process and over ranks, beside what is possible."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from alkit.data.parts import DataSet
from alkit.dtp.assign import bound
from alkit.dtp.presets import PRESETS
from alkit.dtp.run import Record
from alkit.dtp.train import train

__all__ = ["RATIOS", "readable", "speeds", "timed"]

RATIOS = ("over one process", "bound", "share of bound", "over published form")


def timed(
    preset: str, data: DataSet, *, form: str, ranks: int, seed: int = 0, **changes: Any
) -> Record:
    """Train a preset for an epoch of the data, without comparisons of ranks in between."""
    base = PRESETS[preset]
    own = {"form": form, "epochs": 1, "compare_every": 0, "check_every": 10**6, "augment": "none"}
    return train(
        base.net(seed), data, settings=replace(base.settings, **(own | changes)), ranks=ranks,
        progress=False,
    )  # fmt: skip


def speeds(made: Mapping[tuple[str, int], Sequence[Record]], steps: int) -> pd.DataFrame:
    """Return seconds of a step, and times as fast, a row a form and number of ranks.

    Ratios are medians over rounds of ratios within a round.

    Args:
        made: records of the rounds, by (form, ranks).
        steps: that each record's run had.
    """
    base = [r.history.train_s.sum() / steps for r in made["published", 1]]
    rows = []
    for (form, ranks), records in made.items():
        own = pd.Series([r.history.train_s.sum() / steps for r in records])
        same = pd.Series([r.history.train_s.sum() / steps for r in made[form, 1]])
        over_one, over_slow = same / own, pd.Series(base) / own
        reached = pd.Series([_bound(r, ranks) for r in made[form, 1]])
        rows.append({
            "form": form, "ranks": ranks, "n": len(own), "step_s": own.median(),
            "over one process": over_one.median(), "bound": reached.median(),
            "share of bound": (over_one / reached).median(),
            "over published form": over_slow.median(),
            "least": over_slow.min(), "most": over_slow.max(),
        })  # fmt: skip
    return pd.DataFrame(rows)


def _bound(record: Record, ranks: int) -> float:
    """Return what so many ranks can gain at most, by the seconds of one process."""
    loops = record.seconds[record.seconds.kind == "feedback"].sort_values("block").seconds
    rest = float(record.history.train_s.sum() - loops.sum())
    return bound(list(loops), ranks, rest=rest)


def readable(rows: pd.DataFrame) -> pd.DataFrame:
    """Return notebook 53's recorded ratios, a row a form and number of processes."""
    own = rows[rows.metric.isin(["step_s", *RATIOS])]
    wide = own.pivot_table(
        index="method", columns="metric", values="value", aggfunc="first", sort=False
    ).astype(float)
    return pd.DataFrame({
        "feedback x processes": wide.index,
        "seconds a step": wide.step_s.round(2).values,
        **{name: wide[name].round(2).values for name in RATIOS},
    })  # fmt: skip
