"""What studies share that choose rates with a seed of their own and name contrasts beforehand.

Rows of records: `val_accuracy` and `diverged` of the seed that tunes, with the rate in `lr`; of the
other seeds what `alkit.records.comparisons.gap` reads. `by` names the columns that make an arm.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from alkit.figures.titles import Number, panel, title
from alkit.figures.viz import data_name
from alkit.records.comparisons import Gap, gap, holm, verdict

__all__ = [
    "TUNING_SEED",
    "Named",
    "Pair",
    "chosen_rates",
    "contrast_gaps",
    "contrasts",
    "draw_contrasts",
    "draw_panels",
    "edges",
    "listed",
    "points",
    "rates_tried",
    "shown",
    "spoken",
    "validated",
]

TUNING_SEED = 100  # it doesn't count, and leaves the test part closed

_JOINED = {"ahead": "ahead of", "behind": "behind", "equal": "equal to", "undecided": "against"}

Pair = tuple[Gap, float]  # a contrast's gap, and its p by Holm's rule
Named = Mapping[tuple[str, str, str], Pair]  # by data, network and contrast


def validated(recorded: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the tuning seed's validation accuracies: columns `by`, lr, value."""
    if not len(recorded):
        return pd.DataFrame(columns=[*by, "lr", "value"])
    own = _tuning(recorded)
    own = own[own.metric == "val_accuracy"]
    return own.assign(value=own.value.astype(float))[[*by, "lr", "value"]]


def chosen_rates(recorded: pd.DataFrame, by: Sequence[str]) -> dict[tuple[Any, ...], float]:
    """Return for each arm the rate that is best on validation; of equal ones the smallest."""
    own = validated(recorded, by)
    best = own.sort_values(["value", "lr"], ascending=[False, True]).groupby(list(by)).head(1)
    return {tuple(row[:-2]): row.lr for row in best.itertuples(index=False)}


def rates_tried(recorded: pd.DataFrame, by: Sequence[str], arm: Sequence[Any]) -> list[float]:
    """Return the rates of an arm's runs with the tuning seed; where one diverged, that counts."""
    own = _tuning(recorded)
    return sorted(own.lr[(own[list(by)] == list(arm)).all(axis=1)].unique())


def shown(rates: Sequence[float]) -> str:
    """Return rates as tables show them."""
    return ", ".join(f"{rate:g}" for rate in rates)


def edges(recorded: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the arms whose best rate is the smallest or largest that was tried.

    A rate at which a run diverged was tried.

    Returns: a row an arm: its columns, lr, tried. Where there is one, widen all arms' grid.
    """
    rows = []
    for key, lr in chosen_rates(recorded, by).items():
        tried = rates_tried(recorded, by, key)
        if lr in (tried[0], tried[-1]):
            rows.append((*key, lr, shown(tried)))
    return pd.DataFrame(rows, columns=[*by, "lr", "tried"])


def contrast_gaps(own: pd.DataFrame, pairs: Mapping[str, tuple[str, str]]) -> dict[str, Pair]:
    """Return contrasts by their names, each with its p by Holm's rule over all of them.

    Args:
        own: records of one data set and network, of the seeds that count.
        pairs: by name, the labels of who should be ahead and of whom.
    """
    gaps = {name: gap(own, *pair) for name, pair in pairs.items()}
    adjusted = holm([each.p for each in gaps.values()])
    return dict(zip(gaps, zip(gaps.values(), adjusted, strict=True), strict=True))


def contrasts(gaps: Named, margin: float) -> pd.DataFrame:
    """Return a row a contrast: both intervals, n, p, Holm's p, p of equality, and the verdict."""
    rows = []
    for (data, network, name), (each, p) in gaps.items():
        row = {"data": data, "model": network, "contrast": name, "points (n)": str(each)}
        row |= {"bootstrap": each.bootstrap, "p": each.p, "p, Holm": p}
        row |= {f"p, within {margin}": each.p_within(margin)}
        rows.append(row | {"verdict": verdict(each, p, margin)})
    return pd.DataFrame(rows)


def spoken(contrast: str, found: str, say: Callable[[str], str]) -> str:
    """Return a contrast with its verdict in words, as in "DTP ahead of FA".

    Args:
        contrast: "a - b".
        found: ahead, behind, equal or open.
        say: an arm's name for people.
    """
    one, other = map(say, contrast.split(" - "))
    return f"{one} {_JOINED[found]} {other}"


def draw_contrasts(
    gaps: Named,
    margin: float,
    words: str,
    *,
    say: Callable[[str], str],
    colour: Callable[[str], str],
    **numbers: Number | str,
) -> Figure:
    """Draw the contrasts with their paired t intervals, one panel per set and network.

    Args:
        words, numbers: of the title, see `alkit.figures.titles.title`.
        say: a variant's name for people.
        colour: of a variant; a contrast has its first one's.
    """
    panels: dict[str, dict[str, Pair]] = {}
    for (data, network, name), pair in gaps.items():
        panels.setdefault(f"{data_name(data)}, {network}", {})[name] = pair
    figure = draw_panels(
        panels,
        margin,
        xlabel="points of test accuracy",
        say=say,
        said=lambda *pair: verdict(*pair, margin),
        colour=lambda contrast: colour(contrast.partition(" - ")[0]),
    )
    title(figure, words, **numbers)
    return figure


def draw_panels(
    panels: Mapping[str, Mapping[str, Pair]],
    margin: float,
    *,
    xlabel: str,
    say: Callable[[str], str],
    said: Callable[[Gap, float], str],
    colour: Callable[[str], str],
) -> Figure:
    """Draw contrasts with their paired t intervals, one panel per setting, two in a row.

    Args:
        panels: by setting and contrast, the gap and its p by Holm's rule.
        margin: half the width of what counts as equal, in grey.
        say: a variant's name for people.
        said: the verdict of a pair.
        colour: of a contrast.
    """
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    size = 5.6 * columns, 2.2 * lines + 0.4
    # an axis a panel, for pictures' intervals are many times as wide as texts'; the margin measures
    fig, axes = plt.subplots(lines, columns, figsize=size, squeeze=False)
    for spare in axes.flat[len(panels) :]:
        spare.remove()
    for ax, (setting, own) in zip(axes.flat, panels.items(), strict=False):
        for at, (name, (each, _)) in enumerate(own.items()):
            ax.plot([each.low, each.high], [at, at], color=colour(name), lw=2)
            ax.plot(each.points, at, marker="o", color=colour(name))
        ax.axvspan(-margin, margin, color="0.85", zorder=0)
        names = [" - ".join(map(say, name.split(" - "))) for name in own]
        found = [said(*pair) for pair in own.values()]
        told = [f"{a} ({pair[0].seeds})" for a, pair in zip(found, own.values(), strict=True)]
        ax.set_yticks(range(len(own)), [f"{a}: {b}" for a, b in zip(names, told, strict=True)])
        ax.invert_yaxis()
        ax.set(xlabel=xlabel)
        panel(ax, setting)
    return fig


def points(gaps: Named, margin: float, *verdicts: str) -> list[float]:
    """Return the points of those contrasts that have one of these verdicts."""
    return [pair[0].points for pair in gaps.values() if verdict(*pair, margin) in verdicts]


def listed(items: Iterable[str]) -> str:
    """Return "a, b and c"."""
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last


def _tuning(recorded: pd.DataFrame) -> pd.DataFrame:
    return recorded[recorded.seed == TUNING_SEED]
