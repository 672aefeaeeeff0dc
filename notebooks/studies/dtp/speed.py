"""Seconds of a step, in one process and over ranks, beside what is possible.

    sequential      T_f + sum over all blocks of K_n c_n
    layer-parallel  T_f + the largest sum of one process + T_c

c_n seconds of an iteration, T_f of forward pass, targets and update, T_c of broadcasts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

import alkit
from alkit.data.parts import DataSet
from alkit.dtp.assign import longest_first
from alkit.engine.record import Record
from studies.dtp.presets import PRESETS

__all__ = ["RATIOS", "bound", "readable", "speeds", "time_of", "timed"]

RATIOS = ("over one process", "bound", "share of bound", "over published form")


def time_of(loads: Sequence[float], owners: Sequence[int], *, rest: float = 0.0) -> float:
    """Return the seconds of a step, without broadcasts.

    Args:
        rest: T_f, which every process has.
    """
    busy: dict[int, float] = {}
    for load, owner in zip(loads, owners, strict=True):
        busy[owner] = busy.get(owner, 0.0) + load
    return rest + max(busy.values(), default=0.0)


def bound(loads: Sequence[float], workers: int | None = None, *, rest: float = 0.0) -> float:
    """Return how many times as fast a step is at most; default as many processes as loops."""
    owners = longest_first(loads, len(loads) if workers is None else workers)
    together = time_of(loads, owners, rest=rest)
    return (rest + sum(loads)) / together if together else 1.0


def timed(
    preset: str, data: DataSet, *, form: str, ranks: int, seed: int = 0, **changes: Any
) -> Record:
    """Train a preset for an epoch of the data, without comparisons of ranks in between."""
    base = PRESETS[preset]
    own = {"form": form, "epochs": 1, "compare_every": 0, "augment": "none"}
    settings = replace(base.settings, **(own | changes))
    options = {"settings": settings, "ranks": ranks, "progress": False}
    return alkit.fit(base.net(seed), data, method=settings.method, **options)


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
        row = {
            "over one process": over_one.median(),
            "bound": reached.median(),
            "share of bound": (over_one / reached).median(),
            "over published form": over_slow.median(),
            "least": over_slow.min(),
            "most": over_slow.max(),
        }
        kind = {"form": form, "ranks": ranks, "n": len(own), "step_s": own.median()}
        rows.append(kind | row)
    return pd.DataFrame(rows)


def _bound(record: Record, ranks: int) -> float:
    """Return what so many ranks can gain at most, by the seconds of one process."""
    own = record.details.seconds
    loops = own[own.kind == "learn"].sort_values("block").seconds
    rest = float(record.history.train_s.sum() - loops.sum())
    return bound(list(loops), ranks, rest=rest)


def readable(rows: pd.DataFrame) -> pd.DataFrame:
    """Return notebook 53's recorded ratios, a row a form and number of processes."""
    own = rows[rows.metric.isin(["step_s", *RATIOS])]
    wide = own.pivot_table(
        index="method", columns="metric", values="value", aggfunc="first", sort=False
    ).astype(float)
    kinds = {"feedback x processes": wide.index, "seconds a step": wide.step_s.round(2).values}
    return pd.DataFrame(kinds | {name: wide[name].round(2).values for name in RATIOS})
