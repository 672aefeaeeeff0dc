"""Accuracy of methods over modules, rates and seeds: cases, what is recorded of them, the tables.

    tuning    seed 100, every rate of the grid, fewer epochs: the test part is not written down
    testing   seeds 0 to 4 at the rate that was best on validation

Sequential training is the same for any number of modules, and DDG is PipeDream: each is run once.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

import pandas as pd

from alkit.engine.trainer import Record
from alkit.lab import results
from alkit.lab.compare import Gap, gap, label
from studies.common.study import (
    TUNING_SEED,
    contrast_table,
    gap_table,
    mean_accuracies,
)

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
    best: Mapping[tuple[str, int], float] = MappingProxyType({}),
) -> list[Case]:
    """Return all cases; without `lrs` at the best rates of methods and numbers of modules."""
    found = []
    for method, count in product(methods, modules):
        own = lrs or [best[key] for key in [(method, count)] if key in best]
        if not own:
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


def validated(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the tuning seed's validation accuracies: method, modules, lr, value."""
    columns = [*BY, "lr", "value"]
    if not len(recorded):
        return pd.DataFrame(columns=columns)
    own = recorded[(recorded.seed == TUNING_SEED) & (recorded.metric == "val_accuracy")]
    return own[columns].astype({"value": float})


def best_rates(recorded: pd.DataFrame) -> dict[tuple[str, int], float]:
    """Return by (method, modules) the rate that is best on validation with the tuning seed.

    Of equal ones the smallest.
    """
    own = validated(recorded).sort_values(["value", "lr"], ascending=[False, True])
    best = own.groupby(BY).head(1)
    return {(row.method, int(row.modules)): float(row.lr) for row in best.itertuples()}


def edges(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the cases whose best rate is the smallest or largest that was tried, diverged or not.

    Where there is one, widen the grid of all.
    """
    rows, tuning = [], recorded[recorded.seed == TUNING_SEED]
    for (method, modules), lr in best_rates(recorded).items():
        own = tuning[(tuning.method == method) & (tuning.modules == modules)]
        tried = sorted(own.lr.unique())
        if lr in (tried[0], tried[-1]):
            rows.append((method, modules, lr, ", ".join(f"{each:g}" for each in tried)))
    return pd.DataFrame(rows, columns=[*BY, "lr", "tried"])


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


def contrasts(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the contrasts that have runs; Holm's rule is over those of a number of modules."""
    at, found = at_chosen_rates(recorded), []
    for modules in sorted(at.modules[at.modules > 1].unique()):
        own = at[at.modules.isin([1, modules])].assign(recipe="")
        gaps = {f"{one} - {other}": gap(own, one, other) for one, other in CONTRASTS}
        ran = {name: each for name, each in gaps.items() if each.seeds or each.diverged}
        found.append(contrast_table(ran, MARGIN, modules=int(modules)))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


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
