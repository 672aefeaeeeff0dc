"""Tables of target propagation, from notebook 26's recorded rows.

Two experiments: every variant at a rate of its own on few pictures; and `VARIANTS` at rates that
validation chose, on all pictures there are, with contrasts named before any of its runs.
"""

import pandas as pd
from matplotlib.figure import Figure

from alkit.lab.compare import Gap, gap
from alkit.lab.viz import label
from studies.common.study import (
    Named,
    Study,
    gap_table,
    listed,
    mean_accuracies,
    mean_and_seeds,
    shown,
)

VARIANTS = ("bp", "dtp", "dtp_exact", "fa", "dfa", "shallow")
BASELINE = "shallow"  # what every variant has to beat
CONTRASTS = (("dtp", "bp"), ("dtp_exact", "bp"), ("dtp", "dfa"), ("dtp", "fa"))
MARGIN = 1.0  # points: about what another seed alone does to backprop
SHOWN = ("accuracy", "diverged", "train_s")
SAID = {
    "ahead": "beats",
    "behind": "loses to",
    "equal": "equals",
    "undecided": "is undecided against",
}
STUDY = Study(contrasts=CONTRASTS, margin=MARGIN)
chosen_rates, edges = STUDY.chosen_rates, STUDY.edges
contrast_gaps, contrasts = STUDY.contrast_gaps, STUDY.table


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
            "largest angle to BP": "-" if angle is None else f"{angle:.0f}°",
        }
        found.append(row)
    return pd.DataFrame(found)


# ---- the variants, at rates chosen on validation


def chosen_rate(recorded: pd.DataFrame, data: str, variant: str, model: str = "tiny") -> float:
    """Return the rate that was chosen for one variant."""
    return STUDY.chosen_rate(recorded, data, model, variant)


def variants(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row a set and variant: rate and grid, n, accuracy, what it has above the baseline.

    Test accuracies in percent at the last epoch; n counts runs that did not diverge. Minutes are
    those of a run, beside others on the same machine: the median.
    """
    rows = []
    for (data, model), setting in STUDY.opened(recorded):
        for name in VARIANTS:
            own = setting[setting.method == name]
            if not len(own):
                continue
            values = {m: own[own.metric == m].value.astype(float) for m in SHOWN}
            accuracy, above = values["accuracy"], gap(setting, name, BASELINE)
            tried = STUDY.tried(recorded, (data, model, name))
            row = {"data": data, "model": model, "method": name, "n": len(accuracy)}
            row |= {"lr": shown([own.lr.iloc[0]]), "grid": shown(tried)}
            row |= {"accuracy": accuracy.mean(), "sd": accuracy.std()}
            row |= {"above shallow, points (n)": "-" if name == BASELINE else str(above)}
            row |= {"diverged": int(values["diverged"].sum())}
            rows.append(row | {"minutes": values["train_s"].median() / 60})
    return pd.DataFrame(rows)


def draw_contrasts(gaps: Named) -> Figure:
    """Draw the contrasts, see `studies.common.study.Study.draw`; the title has DTP's verdicts."""
    found: dict[str, list[str]] = {}
    for (*_, name), pair in gaps.items():
        one, other = name.split(" - ")
        if one == "dtp":
            found.setdefault(STUDY.verdict(*pair), []).append(label(other))
    said = [f"{SAID[each]} {listed(others)}" for each, others in sorted(found.items())]
    return STUDY.draw(gaps, f"DTP {', '.join(said)}")
