"""Accuracy of methods over modules, rates and seeds: cases, what is recorded of them, the tables.

    tuning    seed 100, every rate of the grid, fewer epochs: the test part is not written down
    testing   seeds 0 to 4 at the rate that was best on validation

Sequential training is the same for any number of modules, and DDG is PipeDream: each is run once.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pandas as pd

from alkit.engine.record import Record
from alkit.records import comparisons, results
from alkit.records.comparisons import Gap, gap, gap_table
from alkit.records.packed import label, pack
from studies import tuned
from studies.tuned import TUNING_SEED, Named

__all__ = [
    "CONTRASTS",
    "MARGIN",
    "Case",
    "accuracies",
    "at_chosen_rates",
    "best_rates",
    "between",
    "cases",
    "chosen_rates",
    "contrast_gaps",
    "contrasts",
    "edges",
    "gaps",
    "record",
]

MARGIN = 1.0  # points: what was published as a slight loss
CONTRASTS = (("pipedream", "seq"), ("fr", "seq"), ("fr", "pipedream"))
ARM = ["method", "modules"]


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
                    f" lrs=[...] and seeds=[{TUNING_SEED}] first, recorded, or give lrs"
                )
            found += [Case(method, count, lr, seed) for lr in own for seed in seeds]
    return found


def record(run: results.Run, case: Case, fitted: Record, model: str, data: str) -> None:
    """Write a case's values into a run's record, all that tables and figures are built from.

    Of the seed that chooses rates nothing of the test part is written down.
    """
    curve = [round(100 * value, 3) for value in fitted.history.get("val_acc", [])]
    rows = [
        ("val_accuracy", max(curve, default=0.0), "%"),
        ("val_curve", curve, "%"),
        ("diverged", fitted.diverged, ""),
        ("train_s", fitted.seconds, "s"),
    ]
    if case.seed != TUNING_SEED:
        rows += [("accuracy", 100 * fitted.test_acc, "%")]
        rows += [("correct", pack(fitted.test_correct), "")]
    labels = {"method": case.method, "model": model, "data": data, "seed": case.seed}
    extra = {"recipe": f"K={case.modules}", "modules": case.modules, "lr": case.lr}
    for metric, value, unit in rows:
        run.record(metric, value, n=len(fitted.test_correct), unit=unit, extra=extra, **labels)


def best_rates(recorded: pd.DataFrame) -> dict[tuple[str, int], float]:
    """Return by (method, modules) the rate that is best on validation with the tuning seed.

    Of equal ones the smallest.
    """
    found = tuned.chosen_rates(recorded, ARM)
    return {(method, int(modules)): lr for (method, modules), lr in found.items()}


def edges(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the cases whose best rate is an end of the grid, see `studies.tuned.edges`."""
    return tuned.edges(recorded, ARM)


def accuracies(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row a method and number of modules at its chosen rate.

    Columns: method, modules, lr, n (seeds), mean, sd (of n - 1), diverged (runs that did), minutes
    (of a run, beside another one on the same machine; the median).
    """
    own, by = at_chosen_rates(recorded), [*ARM, "lr"]
    made = comparisons.accuracies(own, by).drop(columns=["least", "most"])
    took = own[own.metric == "train_s"].astype({"value": float}).groupby(by).value.median()
    made = made.join((took / 60).rename("minutes")).reset_index()
    return made.sort_values(ARM, ignore_index=True)


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


def chosen_rates(recorded: pd.DataFrame) -> dict[tuple[str, str, str], float]:
    """Return `best_rates` by (data, network and modules, method), as contrasts are named."""
    best, found = best_rates(recorded), {}
    for (*setting, modules), own in _settings(recorded):
        counts = {method: 1 if method == "seq" else modules for method in own.method.unique()}
        for method, count in counts.items():
            if (method, count) in best:
                found[*_named(setting, modules), method] = best[method, count]
    return found


def contrast_gaps(recorded: pd.DataFrame) -> Named:
    """Return the contrasts named before the runs that have runs, with Holm's p over a setting's."""
    found = {}
    for (*setting, modules), own in _settings(at_chosen_rates(recorded)):
        ran = set(own.method)
        pairs = {
            f"{one} - {other}": (_case(one, modules), _case(other, modules))
            for one, other in CONTRASTS
            if {one, other} <= ran
        }
        for name, pair in tuned.contrast_gaps(own, pairs).items():
            found[*_named(setting, modules), name] = pair
    return found


def contrasts(gaps: Named) -> pd.DataFrame:
    """Return a row a contrast, see `studies.tuned.contrasts`."""
    return tuned.contrasts(gaps, MARGIN)


def _settings(recorded: pd.DataFrame) -> list[tuple[tuple[str, str, int], pd.DataFrame]]:
    """Return by (data, network, modules) the rows that are compared: seq stands with 1 module."""
    if not len(recorded):
        return []
    return [
        ((data, model, int(modules)), own[own.modules.isin([1, modules])])
        for (data, model), own in recorded.groupby(["data", "model"], sort=False)
        for modules in sorted(own.modules[own.modules > 1].unique())
    ]


def _case(method: str, modules: int) -> str:
    """Name a case as `alkit.records.packed.label` reads it from a row."""
    return f"{method} K={1 if method == 'seq' else modules}"


def _named(setting: list[str], modules: int) -> tuple[str, str]:
    data, model = setting
    return data, f"{model}, K = {modules}"


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
