"""Differences between methods, with the seed as the unit, and what may be concluded from them.

Two intervals stand beside each other, both at 95 %. *Paired t*: over the differences of the seeds
alone, each on its own. *Bootstrap*: seeds and test samples are drawn again, crossed, so it knows
how far single samples decide, and is too narrow for few seeds.

Several contrasts that were named before the runs share one error rate by Holm's rule; that two
methods are equal is shown by two one-sided t tests against a margin, never by a large p.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from alkit.data.extras import extra
from alkit.records.packed import label, unpack

ENOUGH = 5  # seeds for a verdict, where not all of them agree


class Gap(NamedTuple):
    """A difference in points, with its intervals; NaN where there is none.

    Attributes:
        low, high: of the paired t over seeds.
        boot_low, boot_high: of the bootstrap over seeds and test samples.
        seeds: how many both methods have.
        least, most: of the seeds' own differences.
        diverged: seeds in which one of both has no accuracy; what is left of the others would
            flatter it, so there is no interval then.
    """

    points: float
    low: float
    high: float
    boot_low: float
    boot_high: float
    seeds: int
    least: float = math.nan
    most: float = math.nan
    diverged: int = 0

    @property
    def decided(self) -> bool:
        """Whether one method is ahead: no interval holds 0, with 5 seeds or all of them agreeing.

        One seed alone never decides.
        """
        if math.isnan(self.low):
            return False
        ends = [end for end in self[1:5] if not math.isnan(end)]
        agree = self.least > 0 or self.most < 0
        return (min(ends) > 0 or max(ends) < 0) and (self.seeds >= ENOUGH or agree)

    @property
    def p(self) -> float:
        """Two-sided p of the paired t over seeds, that there is no difference; or NaN."""
        above = self._p_above(0)
        return 2 * min(above, 1 - above)

    def p_within(self, margin: float) -> float:
        """P of two one-sided t tests, that the difference is not within +-margin points; or NaN.

        Raises:
            ValueError: a margin that is not above 0.
        """
        if not margin > 0:
            raise ValueError(f"margin is {margin}: give points above 0")
        return max(self._p_above(-margin), 1 - self._p_above(margin))

    def _p_above(self, points: float) -> float:
        """One-sided p of the paired t, that the difference is not above so many points."""
        if math.isnan(self.low):
            return math.nan
        ahead = self.points - points
        t = _student()
        error = (self.high - self.low) / 2 / t.ppf(0.975, self.seeds - 1)
        if error == 0:  # all seeds say the same
            return 0.5 if ahead == 0 else float(ahead < 0)
        return float(t.sf(ahead / error, self.seeds - 1))

    def less(self, margin: float) -> "Gap":
        """Return the gap to a margin of so many points: decided if it is on one side of that."""
        moved = {name: getattr(self, name) - margin for name in MOVED}
        return self._replace(**moved)

    @property
    def bootstrap(self) -> str:
        """The second interval as tables show it."""
        return interval(self.boot_low, self.boot_high)

    def told(self, digits: int = 2) -> str:
        """Return the difference as tables show it, with the interval over seeds, and how many."""
        if self.diverged:
            return f"{self.diverged:.0f} of {self.seeds + self.diverged:.0f} diverged"
        if not self.seeds:
            return "no seed has both yet"
        t = interval(self.low, self.high, digits)
        return " ".join(filter(None, [f"{self.points:+.{digits}f}", t, f"({self.seeds:.0f})"]))

    def __str__(self) -> str:
        return self.told()


def interval(low: float, high: float, digits: int = 2) -> str:
    """Return an interval as tables show it; nothing where there is none."""
    return "" if math.isnan(low) else f"[{low:+.{digits}f}, {high:+.{digits}f}]"


MOVED = ("points", "low", "high", "boot_low", "boot_high", "least", "most")
NOTHING = Gap(math.nan, math.nan, math.nan, math.nan, math.nan, 0)


def gap(frame: pd.DataFrame, better: str, worse: str) -> Gap:
    """Return accuracy of `better` minus that of `worse` over the seeds that both have.

    Args:
        frame: loaded records of one family and data set.
        better, worse: labels such as "bp" or "al fixed_codes".
    Raises:
        ValueError: they were tested on parts of different sizes.
    """
    tables: dict[str, dict[int, np.ndarray]] = {better: {}, worse: {}}
    lost: set[int] = set()
    for row in frame[frame["metric"].isin(["correct", "diverged"])].itertuples():
        if label(row) not in tables:
            continue
        if row.metric == "correct":
            tables[label(row)][row.seed] = unpack(row.value, int(row.n))
        elif row.value:
            lost.add(row.seed)
    common = sorted(set(tables[better]) & set(tables[worse]))
    if lost := lost - set(common):
        return NOTHING._replace(seeds=len(common), diverged=len(lost))
    if not common:
        return NOTHING
    sizes = {len(tables[name][seed]) for name in tables for seed in common}
    if len(sizes) > 1:
        raise ValueError(
            f"{better} and {worse} were tested on parts of {', '.join(map(str, sorted(sizes)))}"
            " samples: compare records of the same test part"
        )
    first, second = (np.stack([tables[name][s] for s in common]) for name in (better, worse))
    _, *ends = bootstrap_difference(first, second)
    low, high = (100 * end for end in ends)
    return of_seeds(100 * (first - second).mean(1))._replace(boot_low=low, boot_high=high)


def gap_of_values(first: Mapping[int, np.ndarray], second: Mapping[int, np.ndarray]) -> Gap:
    """Return the mean of `first` minus that of `second`, over the seeds that both have.

    Args:
        first, second: by seed any numbers of the same test items, such as losses; no percents.
    Raises:
        ValueError: they are of different numbers of items.
    """
    common = sorted(first.keys() & second.keys())
    if not common:
        return NOTHING
    if len({len(table[seed]) for table in (first, second) for seed in common}) > 1:
        raise ValueError("the seeds' values are of different numbers of items: compare equal ones")
    gains = np.stack([np.asarray(first[seed]) - np.asarray(second[seed]) for seed in common])
    low, high = _crossed(gains)
    return of_seeds(gains.mean(1))._replace(boot_low=low, boot_high=high)


def gap_table(gaps: Mapping[tuple[Any, ...], Gap], names: Sequence[str]) -> pd.DataFrame:
    """Return a row a gap: its key in columns of these names, its fields, whether it is decided."""
    rows = [(*key, *each, each.decided) for key, each in gaps.items()]
    return pd.DataFrame(rows, columns=[*names, *Gap._fields, "decided"])


def accuracies(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return n, mean, sd, least and most of the accuracies of each group; how many runs diverged.

    A group whose runs have no accuracy has n = 0.
    """
    own = frame[frame.metric == "accuracy"].astype({"value": float})
    made = own.groupby(list(by), sort=False).value.agg(
        n="count", mean="mean", sd="std", least="min", most="max"
    )
    lost = frame[frame.metric == "diverged"].astype({"value": bool})
    made = made.join(lost.groupby(list(by)).value.sum().rename("diverged"), how="outer")
    return made.assign(n=made.n.fillna(0).astype(int))


def _student() -> Any:
    """Return Student's t distribution."""
    with extra("notebooks", "an interval over seeds"):
        from scipy.stats import t
    return t


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p values: below 0.05 holds for all of them together.

    NaN stays NaN and counts among the tests, so that a contrast without runs can't ease the others.
    """
    order = sorted(range(len(p_values)), key=lambda at: (math.isnan(p_values[at]), p_values[at]))
    adjusted, most = [math.nan] * len(p_values), 0.0
    for rank, at in enumerate(order):
        if not math.isnan(p_values[at]):
            most = max(most, min(1.0, (len(p_values) - rank) * p_values[at]))
            adjusted[at] = most
    return adjusted


def verdict(found: Gap, p: float, margin: float) -> str:
    """Say what a contrast shows: "ahead", "behind", "equal" (within the margin) or "undecided".

    Args:
        p: of no difference, adjusted for the other contrasts.
        margin: points, named before the runs.
    """
    if found.seeds < ENOUGH or found.diverged:
        return "undecided"
    if found.decided and p < 0.05:
        return "ahead" if found.points > 0 else "behind"
    return "equal" if found.p_within(margin) < 0.05 else "undecided"


def mean_and_seeds(mean: float, sd: float, n: float) -> str:
    """Return a mean as tables show it: its spread, if there is one, and how many seeds."""
    spread = "" if math.isnan(sd) else f" ± {sd:.2f}"
    return f"{mean:.2f}{spread} ({n:.0f})"


def of_seeds(differences: Any) -> Gap:
    """Return the gap that one difference a seed makes, without test samples."""
    values = np.asarray(differences, dtype=float)
    ends = float(values.min()), float(values.max())
    return Gap(*paired_t(values), math.nan, math.nan, len(values), *ends)


def paired_t(differences: np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
    """Return the mean and its t interval; NaN ends for a single difference."""
    count, mean = len(differences), float(np.mean(differences))
    if count < 2:
        return mean, math.nan, math.nan
    half = _student().ppf((1 + level) / 2, count - 1) * np.std(differences, ddof=1) / count**0.5
    return mean, float(mean - half), float(mean + half)


def bootstrap_difference(
    a: Any, b: Any, *, resamples: int = 10_000, seed: int = 0, level: float = 0.95
) -> tuple[float, float, float]:
    """Return mean(a) - mean(b) with its percentile bootstrap interval: difference, low, high.

    Seeds and test items are drawn again, the same ones for both methods, and the drawn items serve
    all drawn seeds.

    Args:
        a, b: 0/1 correctness of shape (seeds, test items), or (test items,) of one seed; row i of
            both belongs to one seed.
    """
    a, b = _correctness(a, "a"), _correctness(b, "b")
    if a.shape != b.shape:
        raise ValueError(
            f"a has {a.shape[0]} seeds and {a.shape[1]} test items, b {b.shape[0]} and"
            f" {b.shape[1]}: give the same ones"
        )
    gains = a - b
    return float(gains.mean()), *_crossed(gains, resamples=resamples, seed=seed, level=level)


def _crossed(
    gains: np.ndarray, *, resamples: int = 10_000, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """Return the interval of the mean of gains (seeds, items), both drawn again."""
    # Items that have the same gain in every seed are alike: drawing how often each kind occurs is
    # drawing the items, at a memory that does not depend on how many there are.
    kinds, counts = np.unique(gains.T, axis=0, return_counts=True)
    held = (tuple(map(tuple, kinds.tolist())), tuple(counts.tolist()))
    return _drawn_again(*held, resamples=resamples, seed=seed, level=level)


@functools.lru_cache(maxsize=1024)  # 0.2 s each; tables and figures ask for the same ones
def _drawn_again(
    alike: tuple[tuple[float, ...], ...],
    often: tuple[int, ...],
    *,
    resamples: int,
    seed: int,
    level: float,
) -> tuple[float, float]:
    """Return the interval for kinds of items, each with a gain a seed and how often it occurs."""
    kinds, counts = np.array(alike), np.array(often)
    items, seeds = int(counts.sum()), kinds.shape[1]
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(items, counts / items, size=resamples)
    by_seed = drawn @ kinds / items  # (resamples, seeds)
    which = rng.integers(seeds, size=(resamples, seeds))
    means = np.take_along_axis(by_seed, which, axis=1).mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _correctness(values: Any, name: str) -> np.ndarray:
    array = np.atleast_2d(np.asarray(values))
    if array.ndim != 2 or array.size == 0 or not np.isin(array, (0, 1)).all():
        raise ValueError(f"{name} must hold 0 and 1 in the shape (seeds, items), not {array.shape}")
    return array.astype(int)
