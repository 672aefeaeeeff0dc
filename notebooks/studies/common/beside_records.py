"""This run beside the committed results, in one figure: what a changed parameter moves.

bar            committed results: mean, and the range of their values
diamond        a value of this run
grey, hollow   a time or a ratio of times, taken on a machine that was busy with something else

Unlike things are not compared: data and preset, which fixes all sizes, have to be the same.
"""

import json
from collections.abc import Mapping, Sequence
from statistics import median

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from alkit.lab import viz
from alkit.lab.results import Run

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
) -> Figure | None:
    """Draw one metric, one row for each value of the columns `by` that both sides have.

    The title counts the rows whose committed range holds what this run found there; where there is
    one committed value per row it has the ratio.

    Returns: None where they can't be compared; a sentence then says why.

    Args:
        run: what this run has recorded so far.
        recorded: the committed rows, see `alkit.lab.results.load`; may be empty.
        at: only rows that have these values in these columns, on both sides.
    """
    sides = [_rows_at(rows, at or {}) for rows in (pd.DataFrame(run.rows), recorded)]
    now, kept = (_values(rows, metric, by) for rows in sides)
    if unlike := _unlike(run, *sides, metric) or ("" if now.keys() & kept.keys() else "other rows"):
        print(f"Not drawn beside the committed results: {unlike}.")
        return None
    timed = any(row["metric"] == metric and row["unit"] in TIMED for row in run.rows)
    spoilt = _values(sides[1][_busy(sides[1])], metric, by) if timed and len(recorded) else {}
    inner = "white" if timed and run.busy > BUSY else "0.15"
    diamond = {"marker": "D", "ls": "", "color": "0.15", "ms": 5, "markerfacecolor": inner}
    names = [name for name in kept if name in now]
    fig, ax = plt.subplots(figsize=(7, 1.1 + ROW * len(names)))
    for row, name in enumerate(names):
        held, own = kept[name], now[name]
        low, high, mean = held.min(), held.max(), held.mean()
        shade = "0.85" if name in spoilt else _colour(name, by)
        ax.barh(row, mean, xerr=[[mean - low], [high - mean]], color=shade, alpha=0.5)
        ax.plot(own, [row] * len(own), **diamond)
    ax.set_yticks(range(len(names)), [_label(name, by) for name in names])
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.set(xlabel=xlabel or metric)
    handles = [plt.Rectangle((0, 0), 1, 1, color="0.7"), ax.plot([], [], **diamond)[0]]
    load = f", {run.busy:.0%} of the cores busy with others" if timed else ""
    words = ["committed results: mean and range", f"this run (preset {run.preset}){load}"]
    fig.legend(handles, words, loc="outside lower right", ncols=2, frameon=False, fontsize=8)
    _conclude(ax, {name: (now[name], kept[name]) for name in names})
    return fig


def _unlike(run: Run, now: pd.DataFrame, kept: pd.DataFrame, metric: str) -> str:
    """Say what this run and the committed rows of a metric differ in; "" if in nothing."""
    if not len(kept):
        return "there are none yet"
    for column in ("data", "preset"):
        own, theirs = (_used(rows, metric, column) for rows in (now, kept))
        if not own <= theirs:
            used = [" and ".join(map(viz.label, sorted(each))) or "none" for each in (own, theirs)]
            what = "preset " if column == "preset" else ""
            return f"this run used {what}{used[0]}, they used {what}{used[1]}"
    held = [json.loads(each) for each in set(kept.parameters)]
    for name, value in run.parameters.items():
        if all(value != each.get(name, value) for each in held):
            return f"this run changed {name}={value}"
    return ""


def _used(rows: pd.DataFrame, metric: str, column: str) -> set[str]:
    own = rows[rows.metric == metric] if len(rows) else rows
    return set(own.get(column, pd.Series(dtype=object)).dropna().astype(str))


def _conclude(ax: Axes, pairs: Mapping[tuple[object, ...], tuple[pd.Series, pd.Series]]) -> None:
    """Title the figure: how many rows of this run lie in the committed range, or the ratio."""
    within = [own for own, held in pairs.values() if own.between(held.min(), held.max()).all()]
    title = f"This run lies in the committed range in {len(within)} of {len(pairs)} rows"
    if all(held.min() == held.max() for _, held in pairs.values()):
        ratio = median(own.median() / held.mean() for own, held in pairs.values())
        title = f"This run over the committed results: {ratio:.2f}, median of {len(pairs)} rows"
    ax.set_title(title, wrap=True)


def _busy(rows: pd.DataFrame) -> pd.Series:
    """Return which rows were taken on a machine that their record calls busy."""
    return rows.busy > BUSY


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
    """Name a row; of AL's recipes those that are rivals have a name of their own."""
    parts = dict(zip(by, name, strict=True))
    parts["method"] = viz.label(_who(parts))
    parts.pop("recipe", None)
    return ", ".join(_short(part) for part in parts.values() if _short(part))


def _who(parts: Mapping[str, object]) -> str:
    return f"{parts.get('method', '')} {parts.get('recipe', '')}".strip()


def _short(part: object) -> str:
    return f"{part:g}" if isinstance(part, float) else str(part)


def _colour(name: tuple[object, ...], by: Sequence[str]) -> str:
    return viz.colour(_who(dict(zip(by, name, strict=True))))
