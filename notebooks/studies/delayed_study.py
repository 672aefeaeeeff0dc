"""Accuracy of methods over modules, rates and seeds: cases, what is recorded of them, the tables.

Rates are chosen on validation with one seed, and the other seeds run at the chosen ones. Sequential
training is the same for any number of modules, and DDG is PipeDream: each is run once.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pandas as pd

from alkit.engine.record import Record
from alkit.records import results
from alkit.records.comparisons import Gap, gap
from alkit.records.study import pack

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
    at = at_chosen_rates(recorded)
    values = at[at.metric == "accuracy"].assign(value=lambda t: t.value.astype(float))
    lost = at[at.metric == "diverged"].assign(value=lambda t: t.value.astype(bool).astype(int))
    by = ["method", "modules", "lr"]
    made = values.groupby(by, sort=False).value.agg(n="count", mean="mean", sd="std")
    made["diverged"] = lost.groupby(by, sort=False).value.sum()
    return made.reset_index().sort_values(["method", "modules"], ignore_index=True)


def gaps(recorded: pd.DataFrame, against: str = "seq") -> pd.DataFrame:
    """Return what each method loses against sequential training, in points: a `Gap` a row."""
    at, rows = at_chosen_rates(recorded), []
    base = at[at.method == against].assign(recipe="")
    for (method, modules), part in at[at.method != against].groupby(["method", "modules"]):
        label = f"{method} K={modules}"
        found = gap(pd.concat([base, part]), against, label)
        rows.append((method, int(modules), *found, found.decided))
    return pd.DataFrame(rows, columns=["method", "modules", *Gap._fields, "decided"])


def between(recorded: pd.DataFrame, first: str, second: str) -> pd.DataFrame:
    """Return by how many points a method is ahead of another with as many modules, likewise."""
    at, rows = at_chosen_rates(recorded), []
    for modules in sorted(
        set(at[at.method == first].modules) & set(at[at.method == second].modules)
    ):
        own = at[at.modules == modules]
        base = own[own.method == first].assign(recipe="")
        label = f"{second} K={int(modules)}"
        found = gap(pd.concat([base, own[own.method == second]]), first, label)
        rows.append((int(modules), *found, found.decided))
    return pd.DataFrame(rows, columns=["modules", *Gap._fields, "decided"])


def at_chosen_rates(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the rows at each case's chosen rate."""
    best = best_rates(recorded)
    keys = zip(recorded.method, recorded.modules, strict=True)
    wanted = [best.get((m, int(k) if k == k else -1)) for m, k in keys]
    return recorded[recorded.lr == pd.Series(wanted, index=recorded.index, dtype=float)]
