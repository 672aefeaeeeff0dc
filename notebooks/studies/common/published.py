"""Ours beside theirs: recorded accuracies, published ones, and whether they say the same."""

import pandas as pd

from alkit.data import paths
from alkit.records.comparisons import Gap, gap, label, mean_and_seeds


def published(name: str) -> pd.DataFrame:
    """Return a table of published numbers, `alkit/records/published/<name>.csv`, with its source.

    Raises:
        FileNotFoundError: there is none of that name; names those that there are.
    """
    folder = paths.published_dir()
    path = folder / f"{name}.csv"
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in folder.glob("*.csv")))
        raise FileNotFoundError(f"no published table {name!r}; there are {there}")
    return pd.read_csv(path)


def agrees(theirs: float, ours: Gap) -> str:
    """Say whether a published difference (points, or its sign) and ours say the same.

    "yes": both say that the same method is ahead; "no": they say the opposite; "undecided": ours
    does not decide (see `alkit.records.comparisons.Gap.decided`).
    """
    if not ours.decided:
        return "undecided"
    return "yes" if (theirs > 0) == (ours.points > 0) else "no"


def accuracy_table(
    recorded: pd.DataFrame, theirs: pd.DataFrame, tfidf: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return a row a data set and network, in percent of the test part.

    Args:
        recorded: rows of the family notebooks, as `results.load` gives them.
        theirs: `published("al_accuracy")`.
        tfidf: rows of the TF-IDF notebook; its accuracy stands in a column of its own.
    """
    rows = []
    for (data, model), own in recorded.groupby(["data", "model"], sort=False):
        other = theirs[(theirs.data == data) & (theirs.model == model)].set_index("method")
        row = {"data": data, "network": model, "BP": _cell(own, "bp")}
        row |= {
            "local classifiers": _cell(own, "al fixed_codes"),
            "AL, original": _cell(own, "al original"),
        }
        if mean := _cell(own, "al fixed_codes", "mean_of_exits"):
            row["mean of exits"] = mean
        lead = gap(own, "bp", "al fixed_codes")
        if lead.seeds:
            row["BP - local classifiers, points (n)"] = str(lead)
            if {"bp", "al"} <= set(other.index):
                row["same conclusion?"] = agrees(other.final["bp"] - other.final["al"], lead)
        for method in other.index:
            numbers = other.final[method], other.final_sd[method], other.n[method]
            row[f"published {method.upper()}"] = mean_and_seeds(*numbers)
        row["TF-IDF"] = "" if tfidf is None else _cell(tfidf[tfidf.data == data], "tfidf")
        rows.append(row)
    return pd.DataFrame(rows).fillna("")


def _cell(rows: pd.DataFrame, name: str, metric: str = "accuracy") -> str:
    """Return "mean ± sd (seeds)" of a method's metric, or nothing if it was not run."""
    own = [
        float(row.value) for row in rows.itertuples() if row.metric == metric and label(row) == name
    ]
    values = pd.Series(own)
    return mean_and_seeds(values.mean(), values.std(), len(own)) if own else ""
