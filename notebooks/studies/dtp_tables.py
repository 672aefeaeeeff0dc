"""Tables of target propagation, from notebook 52's recorded rows.

Two experiments: every variant at a rate of its own on few pictures; and `ARMS` at rates chosen on
validation, on all pictures at hand, with the contrasts that were named before any of its runs.
"""

from collections.abc import Iterable
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from alkit.figures.viz import colour, label
from alkit.records import comparisons
from alkit.records.comparisons import Gap, gap, gap_table, mean_and_seeds, verdict
from studies import tuned
from studies.tuned import TUNING_SEED, Named

__all__ = [
    "ARMS",
    "CONTRASTS",
    "MARGIN",
    "accuracies",
    "angles",
    "arms",
    "chosen_rate",
    "chosen_rates",
    "contrast_gaps",
    "contrasts",
    "draw_contrasts",
    "edges",
    "gaps",
    "readable",
]

ARMS = ("bp", "dtp", "dtp_exact", "fa", "dfa", "shallow")
BASELINE = "shallow"  # what every arm has to beat
CONTRASTS = (("dtp", "bp"), ("dtp_exact", "bp"), ("dtp", "dfa"), ("dtp", "fa"))
MARGIN = 1.0  # points: about what another seed alone does to backprop
SETTING = ["data", "model"]
ARM = [*SETTING, "method"]
SHOWN = ("accuracy", "diverged", "train_s")
SAID = {
    "ahead": "beats",
    "behind": "loses to",
    "equal": "equals",
    "undecided": "is undecided against",
}


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


# ---- the arms, at rates chosen on validation


def chosen_rates(recorded: pd.DataFrame) -> dict[tuple[Any, ...], float]:
    """Return by (data, network, arm) the rate that is best on validation with the tuning seed.

    Of equal ones the smallest.
    """
    return tuned.chosen_rates(recorded, ARM)


def chosen_rate(recorded: pd.DataFrame, data: str, arm: str, model: str = "tiny") -> float:
    """Return that rate of one arm.

    Raises:
        ValueError: none has been chosen yet; says what to run.
    """
    rate = chosen_rates(recorded).get((data, model, arm))
    if rate is None:
        raise ValueError(
            f"no rate has been chosen for {arm} on {data}: run the rates' sweep first, recorded,"
            " or give lr"
        )
    return rate


def edges(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the arms whose best rate is at an edge of its grid, see `studies.tuned.edges`."""
    return tuned.edges(recorded, ARM)


def arms(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row a set and arm: rate and grid, n, accuracy, what it has above the baseline.

    Test accuracies in percent at the last epoch; n counts runs that did not diverge. Minutes are
    those of a run, beside others on the same machine: the median.
    """
    rows = []
    for (data, model), setting in _opened(recorded):
        for name in ARMS:
            own = setting[setting.method == name]
            if not len(own):
                continue
            values = {m: own[own.metric == m].value.astype(float) for m in SHOWN}
            accuracy, above = values["accuracy"], gap(setting, name, BASELINE)
            tried = tuned.rates_tried(recorded, ARM, (data, model, name))
            row = {"data": data, "model": model, "method": name, "n": len(accuracy)}
            row |= {"lr": tuned.shown([own.lr.iloc[0]]), "grid": tuned.shown(tried)}
            row |= {"accuracy": accuracy.mean(), "sd": accuracy.std()}
            row |= {"above shallow, points (n)": "-" if name == BASELINE else str(above)}
            row |= {"diverged": int(values["diverged"].sum())}
            rows.append(row | {"minutes": values["train_s"].median() / 60})
    return pd.DataFrame(rows)


def contrast_gaps(recorded: pd.DataFrame) -> Named:
    """Return the contrasts named before the runs, with Holm's p over those of a set."""
    named = {f"{one} - {other}": (one, other) for one, other in CONTRASTS}
    return {
        (*setting, name): pair
        for setting, own in _opened(recorded)
        for name, pair in tuned.contrast_gaps(own, named).items()
    }


def contrasts(gaps: Named) -> pd.DataFrame:
    """Return a row a contrast, see `studies.tuned.contrasts`."""
    return tuned.contrasts(gaps, MARGIN)


def draw_contrasts(gaps: Named) -> Figure:
    """Draw the contrasts, see `studies.tuned.draw_contrasts`; the title has DTP's verdicts."""
    found: dict[str, list[str]] = {}
    for (*_, name), pair in gaps.items():
        one, other = name.split(" - ")
        if one == "dtp":
            found.setdefault(verdict(*pair, MARGIN), []).append(label(other))
    said = [f"{SAID[each]} {tuned.listed(others)}" for each, others in sorted(found.items())]
    words = f"DTP {', '.join(said)}"
    return tuned.draw_contrasts(gaps, MARGIN, words, say=label, colour=colour)


def _opened(recorded: pd.DataFrame) -> Iterable[tuple[Any, pd.DataFrame]]:
    """Return by (data, network) the rows of the seeds that count."""
    if not len(recorded):
        return ()
    return recorded[recorded.seed != TUNING_SEED].groupby(SETTING, sort=False)
