"""Tables of target propagation, from notebook 26's recorded rows."""

import pandas as pd

from alkit.lab.compare import gap
from studies.common.study import gap_table, mean_accuracies


def accuracies(rows: pd.DataFrame) -> pd.DataFrame:
    """Return mean and spread by data set and variant, best first, and how many runs diverged."""
    made = mean_accuracies(rows, ["data", "method"])
    return made.sort_values(["data", "mean"], ascending=[True, False])


def gaps(rows: pd.DataFrame, against: str = "bp") -> pd.DataFrame:
    """Return the points that each variant loses, a `Gap` a row; none where runs diverged."""
    found = {}
    for data, own in rows.drop(columns="recipe", errors="ignore").groupby("data", sort=False):
        for name in dict.fromkeys(own.method):
            if name != against and against in set(own.method):
                found[data, name] = gap(own, against, name)
    return gap_table(found, ["data", "method"])


def angles(rows: pd.DataFrame) -> pd.DataFrame:
    """Return mean angles over seeds: a row a data set and variant, a column a block."""
    own = rows[rows.metric == "angle"].assign(value=lambda t: t.value.astype(float))
    wide = own.groupby(["data", "method", "block"], sort=False).value.mean().unstack()
    return wide[list(dict.fromkeys(own.block))]
