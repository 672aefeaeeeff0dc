"""Accuracy of methods over modules, rates and seeds: cases, what is recorded of them, the tables.

Rates are chosen on validation with one seed, and the other seeds run at the chosen ones. Sequential
training is the same for any number of modules, and DDG is PipeDream: each is run once.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pandas as pd

from alkit.engine.record import Record
from alkit.records import comparisons, results
from alkit.records.comparisons import Gap, gap, gap_table
from alkit.records.study import label, pack

__all__ = [
    "Case",
    "accuracies",
    "at_chosen_rates",
    "best_rates",
    "between",
    "cases",
    "gaps",
    "record",
]


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
    Raises:
        ValueError: no rate is given and none was chosen yet.
    """
    found = []
    for method in methods:
        for count in modules:
            own = list(lrs) or [chosen(method, count)]
            if None in own:
                raise ValueError(
                    f"no rate has been chosen for {method} with {count} modules: run it with"
                    " lrs=[...] and one seed first, recorded, or give lrs"
                )
            found += [Case(method, count, lr, seed) for lr in own for seed in seeds]
    return found


def record(run: results.Run, case: Case, fitted: Record, model: str, data: str) -> None:
    """Write a case's values into a run's record, all that tables and figures are built from."""
    curve = [round(100 * value, 3) for value in fitted.history.get("val_acc", [])]
    rows = [
        ("accuracy", 100 * fitted.test_acc, "%"),
        ("val_best", max(curve, default=0.0), "%"),
        ("val_curve", curve, "%"),
        ("diverged", fitted.diverged, ""),
        ("correct", pack(fitted.test_correct), ""),
        ("train_s", fitted.seconds, "s"),
    ]
    labels = {"method": case.method, "model": model, "data": data, "seed": case.seed}
    extra = {"recipe": f"K={case.modules}", "modules": case.modules, "lr": case.lr}
    for metric, value, unit in rows:
        run.record(metric, value, n=len(fitted.test_correct), unit=unit, extra=extra, **labels)


def best_rates(recorded: pd.DataFrame, seed: int = 0) -> dict[tuple[str, int], float]:
    """Return by (method, modules) the rate that is best on validation with one seed."""
    if not len(recorded):
        return {}
    own = recorded[(recorded.metric == "val_best") & (recorded.seed == seed)]
    if not len(own):
        return {}
    own = own.assign(value=own.value.astype(float)).sort_values(["value", "lr"])
    best = own.groupby(["method", "modules"]).tail(1)
    return {(r.method, int(r.modules)): float(r.lr) for r in best.itertuples()}


def accuracies(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row a method and number of modules at its chosen rate.

    Columns: method, modules, lr, n (seeds), mean, sd (of n - 1), diverged (runs that did).
    """
    made = comparisons.accuracies(at_chosen_rates(recorded), ["method", "modules", "lr"])
    made = made.drop(columns=["least", "most"]).reset_index()
    return made.sort_values(["method", "modules"], ignore_index=True)


def gaps(recorded: pd.DataFrame, against: str = "seq") -> pd.DataFrame:
    """Return what each method loses against sequential training, in points: a `Gap` a row."""
    at = at_chosen_rates(recorded)
    others = at[at.method != against].groupby(["method", "modules"])
    base = at[at.method == against]
    found = {(m, int(k)): _ahead(against, base, own) for (m, k), own in others}
    return gap_table(found, ["method", "modules"])


def between(recorded: pd.DataFrame, first: str, second: str) -> pd.DataFrame:
    """Return by how many points a method is ahead of another with as many modules, likewise."""
    at = at_chosen_rates(recorded)
    one, other = (dict(list(at[at.method == m].groupby("modules"))) for m in (first, second))
    shared = sorted(one.keys() & other.keys())
    return gap_table({(int(k),): _ahead(first, one[k], other[k]) for k in shared}, ["modules"])


def _ahead(method: str, base: pd.DataFrame, rows: pd.DataFrame) -> Gap:
    """Return by how many points a method is ahead of the case whose rows these are."""
    return gap(pd.concat([base.assign(recipe=""), rows]), method, label(next(rows.itertuples())))


def at_chosen_rates(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the rows at each case's chosen rate."""
    best = best_rates(recorded)
    keys = zip(recorded.method, recorded.modules, strict=True)
    wanted = [best.get((m, int(k) if k == k else -1)) for m, k in keys]
    return recorded[recorded.lr == pd.Series(wanted, index=recorded.index, dtype=float)]
