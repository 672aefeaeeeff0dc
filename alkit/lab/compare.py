"""Differences between methods, with the seed as the unit, and verdicts on them.

Intervals are of a paired t over the seeds, at 95 %. That two methods are equal is shown by two
one-sided t tests against a margin, never by a large p.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

ENOUGH = 5  # seeds for a verdict


class Gap(NamedTuple):
    """A difference in points, with its interval; NaN where there is none."""

    points: float
    low: float  # of the paired t over seeds, as `high`
    high: float
    seeds: int  # how many both methods have
    diverged: int = 0  # seeds without an accuracy of one: the rest would flatter it, so no interval

    @property
    def decided(self) -> bool:
        """Whether one method is ahead: no 0 in the interval of five seeds or more."""
        return self.seeds >= ENOUGH and (self.low > 0 or self.high < 0)

    @property
    def p(self) -> float:
        """Two-sided p of the paired t over seeds, for the hypothesis of equality; or NaN."""
        above = self._p_above(0)
        return 2 * min(above, 1 - above)

    def p_within(self, margin: float) -> float:
        """P of two one-sided t tests, that the difference is not within +-margin points; or NaN."""
        return max(self._p_above(-margin), 1 - self._p_above(margin))

    def _p_above(self, points: float) -> float:
        """One-sided p of the paired t, that the difference is not above `points`."""
        ahead, half = self.points - points, (self.high - self.low) / 2
        if half == 0:  # all seeds say the same
            return 0.5 if ahead == 0 else float(ahead < 0)
        return float(stats.t.sf(ahead / half * _wide(self.seeds), self.seeds - 1))

    def told(self, digits: int = 2) -> str:
        """Return the difference as tables show it, with the interval over seeds, and how many."""
        if self.diverged:
            return f"{self.diverged:.0f} of {self.seeds + self.diverged:.0f} diverged"
        if not self.seeds:
            return "no seed has both yet"
        ends = f" [{self.low:+.{digits}f}, {self.high:+.{digits}f}]"
        return f"{self.points:+.{digits}f}{'' if math.isnan(self.low) else ends} ({self.seeds:.0f})"

    def __str__(self) -> str:
        return self.told()


def label(row: Any) -> str:
    """Return the label of a row of records: method and recipe."""
    recipe = getattr(row, "recipe", "")
    return f"{row.method} {recipe if isinstance(recipe, str) else ''}".strip()


def gap(frame: pd.DataFrame, better: str, worse: str, metric: str = "accuracy") -> Gap:
    """Return the difference of a metric, `better` minus `worse`, over the seeds that both have.

    Args:
        frame: loaded records of one family and data set.
        better, worse: labels such as "bp" or "al fixed_codes".
    Raises:
        ValueError: they were tested on parts of different sizes.
    """
    rows = frame[frame["metric"].isin([metric, "diverged"])]
    rows = rows.assign(label=[*map(label, rows.itertuples())])
    rows = rows[rows["label"].isin([better, worse])]
    own, ended = rows[rows["metric"] == metric], rows[rows["metric"] == "diverged"]
    own = own.drop_duplicates(["label", "seed"], keep="last")
    values = own.pivot(index="seed", columns="label", values="value").astype(float)
    values = values.reindex(columns=[better, worse]).dropna()
    lost = {*ended["seed"][ended["value"].astype(bool)]} - {*values.index}
    if lost or not len(values):
        return Gap(math.nan, math.nan, math.nan, len(values), diverged=len(lost))
    if len(sizes := own["n"][own["seed"].isin(values.index)].unique()) > 1:
        raise ValueError(
            f"{better} and {worse} were tested on parts of {', '.join(map(str, sorted(sizes)))}"
            " samples: compare records of the same test part"
        )
    return of_seeds(values.iloc[:, 0] - values.iloc[:, 1])  # of a method with itself, too


def of_seeds(differences: Any) -> Gap:
    """Return the gap that one difference a seed makes; a single one has no interval."""
    values = np.asarray(differences, dtype=float)
    half = _wide(len(values)) * stats.sem(values) if len(values) > 1 else math.nan
    ends = values.mean() - half, values.mean() + half
    return Gap(values.mean(), *ends, len(values))


def _wide(count: int) -> float:
    """Return how many standard errors half an interval has."""
    return float(stats.t.ppf(0.975, count - 1))
