"""Accuracy of methods over modules, rates and seeds: cases, what is recorded of them, the tables.

    tuning    seed 100, every rate of the grid, fewer epochs: the test part is not written down
    testing   seeds 0 to 4 at the rate that was best on validation

Sequential training is the same for any number of modules, and DDG is PipeDream: each is run once.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pandas as pd

from alkit.engine.trainer import Record
from alkit.lab import results
from alkit.lab.compare import Gap, gap, label
from studies.common.study import TUNING_SEED, Study, gap_table, mean_accuracies

MARGIN = 1.0  # points: what was published as a slight loss
CONTRASTS = (("pipedream", "seq"), ("fr", "seq"), ("fr", "pipedream"))
BY = ["method", "modules"]


class Case(NamedTuple):
    """One run."""

    method: str
    modules: int
    lr: float
    seed: int

    @property
    def name(self) -> str:
        """The case as bars of progress show it."""
        return f"{self.method} K={self.modules} lr={self.lr:g} seed={self.seed}"


def cases(
    methods: Sequence[str],
    modules: Sequence[int],
    lrs: Sequence[float],
    seeds: Sequence[int],
    chosen: Callable[[str, int], float | None] = lambda method, modules: None,
) -> list[Case]:
    """Return all cases.

    Args:
        lrs: rates; none to take those that are `chosen`.
        chosen: the rate of a method and number of modules, or None where there is none yet.
    """
    found = []
    for method in methods:
        for count in modules:
            own = list(lrs) or [chosen(method, count)]
            if None in own:
                raise ValueError(
                    f"no rate has been chosen for {method} with {count} modules: run it with"
                    f" lrs=[...] and seeds=[{TUNING_SEED}] first, recorded, or give lrs"
                )
            found += [Case(method, count, lr, seed) for lr in own for seed in seeds]
    return found


def record(run: results.Run, case: Case, fitted: Record | None, model: str, data: str) -> None:
    """Write a case's values into a run's record, all that tables and figures are built from.

    Of the seed that chooses rates nothing of the test part is written down, nor of a run that
    diverged, which left nothing.
    """
    history = {} if fitted is None else fitted.history
    curve = [round(100 * value, 3) for value in history.get("val_acc", [])]
    rows = [
        ("val_accuracy", max(curve, default=0.0), "%"),
        ("val_curve", curve, "%"),
        ("diverged", fitted is None, ""),
        ("train_s", 0.0 if fitted is None else fitted.seconds, "s"),
    ]
    if case.seed != TUNING_SEED and fitted is not None:
        rows += [("accuracy", 100 * fitted.test_acc, "%")]
    labels = {"method": case.method, "model": model, "data": data, "seed": case.seed}
    extra = {"recipe": f"K={case.modules}", "modules": case.modules, "lr": case.lr}
    for metric, value, unit in rows:
        n = None if fitted is None else len(fitted.test_correct)
        run.record(metric, value, n=n, unit=unit, extra=extra, **labels)


def best_rates(recorded: pd.DataFrame) -> dict[tuple[str, int], float]:
    """Return by (method, modules) the rate that is best on validation with the tuning seed.

    Of equal ones the smallest.
    """
    found = RATES.chosen_rates(recorded)
    return {(method, int(modules)): lr for (method, modules), lr in found.items()}


def accuracies(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row a method and number of modules at its chosen rate.

    Columns: method, modules, lr, n (seeds), mean, sd (of n - 1), diverged (runs that did), minutes
    (of a run, beside another one on the same machine; the median).
    """
    own, by = at_chosen_rates(recorded), [*BY, "lr"]
    made = mean_accuracies(own, by)
    took = own[own.metric == "train_s"].astype({"value": float}).groupby(by).value.median()
    made = made.join((took / 60).rename("minutes")).reset_index()
    return made.sort_values(BY, ignore_index=True)


def gaps(recorded: pd.DataFrame, against: str = "seq") -> pd.DataFrame:
    """Return what each method loses against sequential training, in points: a `Gap` a row."""
    at = at_chosen_rates(recorded)
    others = at[at.method != against].groupby(["method", "modules"])
    base = at[at.method == against]
    found = {(m, int(k)): _ahead(against, base, own) for (m, k), own in others}
    return gap_table(found, ["method", "modules"])


def _by_setting(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return what is compared: at each number of modules its rows, and seq, which has 1."""
    kept = pd.concat([recorded[recorded.seed == TUNING_SEED], at_chosen_rates(recorded)])
    made = [kept.iloc[:0]]
    for modules in sorted(kept.modules[kept.modules > 1].unique()):
        own = kept[kept.modules.isin([1, modules])]
        own = own[own.groupby(["data", "model"]).modules.transform("max") > 1]
        made.append(own.assign(recipe="", model=own.model + f", K = {modules:.0f}"))
    return pd.concat(made)


def _ahead(method: str, base: pd.DataFrame, rows: pd.DataFrame) -> Gap:
    """Return by how many points a method is ahead of the case whose rows these are."""
    return gap(pd.concat([base.assign(recipe=""), rows]), method, label(next(rows.itertuples())))


def at_chosen_rates(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the seeds that count, at each case's chosen rate where there is one."""
    best = best_rates(recorded)
    own = recorded[recorded.seed != TUNING_SEED]
    keys = zip(own.method, own.modules, own.lr, strict=True)
    kept = [best.get((m, int(k) if k == k else -1), lr) == lr for m, k, lr in keys]
    return own[kept]


RATES = Study(contrasts=(), margin=MARGIN, by=BY)
STUDY = Study(contrasts=CONTRASTS, margin=MARGIN, rows=_by_setting, missing="left out")
edges, chosen_rates = RATES.edges, STUDY.chosen_rates
contrast_gaps, contrasts = STUDY.contrast_gaps, STUDY.table
