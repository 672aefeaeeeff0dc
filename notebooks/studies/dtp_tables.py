"""Tables of target propagation, from notebook 52's recorded rows."""

import pandas as pd

from alkit.figures.viz import label
from alkit.records import comparisons
from alkit.records.comparisons import Gap, gap, gap_table, mean_and_seeds

__all__ = ["accuracies", "angles", "gaps", "readable"]


def accuracies(rows: pd.DataFrame) -> pd.DataFrame:
    """Return mean and spread by data set and variant, best first, and how many runs diverged."""
    made = comparisons.accuracies(rows, ["data", "method"])
    return made.sort_values(["data", "mean"], ascending=[True, False])


def gaps(rows: pd.DataFrame, against: str = "bp") -> pd.DataFrame:
    """Return the points that each variant loses, a `Gap` a row; none where runs diverged."""
    found = {}
    for data, own in rows.drop(columns="recipe", errors="ignore").groupby("data", sort=False):
        for name in dict.fromkeys(own.method):
            if name != against and against in set(own.method):
                found[data, name] = gap(own, against, name)
    return gap_table(found, ["data", "method"])


def angles(rows: pd.DataFrame, metric: str = "angle", how: str = "mean") -> pd.DataFrame:
    """Return a row a data set and variant, a column a block, over seeds."""
    own = rows[rows.metric == metric].assign(value=lambda t: t.value.astype(float))
    wide = own.groupby(["data", "method", "block"], sort=False).value.agg(how).unstack()
    return wide[list(dict.fromkeys(own.block))]


def readable(rows: pd.DataFrame, against: str = "bp") -> pd.DataFrame:
    """Return accuracies, what is lost and the largest angle, with spreads for people."""
    made, lost = accuracies(rows), gaps(rows, against).set_index(["data", "method"])
    largest = angles(rows).max(axis=1)
    found = []
    for (data, method), own in made.iterrows():
        behind = "-"
        if (data, method) in lost.index:
            behind = Gap(*lost.loc[(data, method), list(Gap._fields)])
        cell = mean_and_seeds(own["mean"], own.sd, own.n) if own.n else "-"
        cell += f", {own.diverged:.0f} diverged" if own.diverged else ""
        angle = largest.get((data, method))
        row = {
            "data": data,
            "method": label(method),
            "accuracy, % (n seeds)": cell,
            "behind BP, points (n)": str(behind),
            "bootstrap": getattr(behind, "bootstrap", ""),
            "largest angle to BP": "-" if angle is None else f"{angle:.0f}°",
        }
        found.append(row)
    return pd.DataFrame(found)
