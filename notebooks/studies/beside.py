"""This run beside the committed record, in one figure: what a changed parameter moves.

bar            the record: mean, and the range of its values
diamond        a value of this run
grey, hollow   a time or a ratio of times, taken on a machine that was busy with something else
"""

from collections.abc import Mapping, Sequence
from statistics import median

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from alkit.figures import viz
from alkit.records.results import Run

__all__ = ["draw_beside"]

ROW = 0.27  # inches
TIMED = {"s", "ms", "1/s", "x"}  # units of what a busy machine spoils
BUSY = 0.25  # share of the cores from which it does


def draw_beside(
    run: Run,
    recorded: pd.DataFrame,
    metric: str,
    *,
    by: Sequence[str],
    at: Mapping[str, object] | None = None,
    xlabel: str = "",
) -> Figure:
    """Draw one metric, a row for each value of the columns `by` that either side has.

    The title counts the rows whose record's range holds what this run found there; of a record
    with one value a row it tells the ratio.

    Args:
        run: what this run has recorded so far.
        recorded: the committed rows, see `alkit.records.results.load`; may be empty.
        at: only rows that have these values in these columns, on both sides.
    """
    sides = [_rows_at(rows, at or {}) for rows in (pd.DataFrame(run.rows), recorded)]
    now, kept = (_values(rows, metric, by) for rows in sides)
    timed = any(row["metric"] == metric and row["unit"] in TIMED for row in run.rows)
    spoilt = _values(sides[1][_busy(sides[1])], metric, by) if timed and len(recorded) else {}
    inner = "white" if timed and run.busy > BUSY else "0.15"
    diamond = {"marker": "D", "ls": "", "color": "0.15", "ms": 5, "markerfacecolor": inner}
    names = list(dict.fromkeys([*kept, *now]))
    fig, ax = plt.subplots(figsize=(7, 1.1 + ROW * len(names)))
    found = []
    for row, name in enumerate(names):
        own = now.get(name, pd.Series(dtype=float))
        if name in kept:
            held = kept[name]
            low, high, mean = held.min(), held.max(), held.mean()
            shade = "0.85" if name in spoilt else _colour(name, by)
            ax.barh(row, mean, xerr=[[mean - low], [high - mean]], color=shade, alpha=0.5)
            if len(own):
                found.append((own.between(low, high).all(), own.mean() / mean, high > low))
        ax.plot(own, [row] * len(own), **diamond)
    ax.set_yticks(range(len(names)), [_label(name, by) for name in names])
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.set(xlabel=xlabel or metric)
    ax.set_title(_said(found, len(recorded)))
    handles = [plt.Rectangle((0, 0), 1, 1, color="0.7"), ax.plot([], [], **diamond)[0]]
    load = f", {run.busy:.0%} of the cores busy before it" if timed else ""
    words = ["record: mean and range", f"this run, preset {run.preset}{load}"]
    fig.legend(handles, words, loc="outside lower right", ncols=2, frameon=False, fontsize=8)
    return fig


def _said(found: Sequence[tuple[bool, float, bool]], recorded: int) -> str:
    """Return the title: by row whether this run is within, its ratio, and if there is a range."""
    if not recorded:
        return "This run; there is no record yet"
    if not found:
        return "This run's rows are others than the record's"
    within, ratios, ranges = zip(*found, strict=True)
    if not any(ranges):
        return f"This run over the record: {median(ratios):.2f}, median of {len(found)} rows"
    return f"This run lies in the record's range in {sum(within)} of {len(found)} rows"


def _busy(rows: pd.DataFrame) -> pd.Series:
    """Return which rows were taken on a machine that their record calls busy."""
    return rows.machine.str.extract(r"(\d+)% busy before")[0].astype(float) > 100 * BUSY


def _rows_at(rows: pd.DataFrame, at: Mapping[str, object]) -> pd.DataFrame:
    for column, value in at.items():
        rows = rows[rows[column] == value] if len(rows) else rows
    return rows


def _values(
    rows: pd.DataFrame, metric: str, by: Sequence[str]
) -> dict[tuple[object, ...], pd.Series]:
    """Return the values of a metric by the columns; what a row has not is ""."""
    own = rows[rows.metric == metric] if len(rows) else rows
    own = own.reindex(columns=["value", *by])
    names = own[list(by)].astype(object).where(own[list(by)].notna(), "")
    values = own.value.astype(float)
    return dict(iter(values.groupby([names[each] for each in by], sort=False)))


def _label(name: tuple[object, ...], by: Sequence[str]) -> str:
    told = [
        _short(part) if each != "method" or not viz.known(str(part)) else viz.label(str(part))
        for each, part in zip(by, name, strict=True)
    ]
    return ", ".join(each for each in told if each)


def _short(part: object) -> str:
    return f"{part:g}" if isinstance(part, float) else str(part)


def _colour(name: tuple[object, ...], by: Sequence[str]) -> str:
    method = str(dict(zip(by, name, strict=True)).get("method", ""))
    return viz.colour(method) if viz.known(method) else "0.6"
