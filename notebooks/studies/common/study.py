"""A study: variants at rates that a seed of its own chooses, contrasts named before their runs.

    tuning    seed 100, every rate of the grid: the test part stays closed
    testing   the other seeds, at the rate that was best on validation

All comes from records: of the seed that tunes `val_accuracy` (or what `validation` names) and
`diverged`, with the rate in `lr`; of the others what `compare` reads.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from alkit.lab import viz
from alkit.lab.compare import ENOUGH, Gap, gap

TUNING_SEED = 100  # excluded from results; leaves the test part closed

Pair = tuple[Gap, float]  # a contrast's gap, and its p by Holm's rule
Named = Mapping[tuple[Any, ...], Pair]  # by the columns of a setting, and the contrast's name


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p values; NaN stays NaN and counts among the tests."""
    p = pd.Series(p_values, dtype=float)
    steps = p.sort_values() * np.arange(len(p), 0, -1)  # NaN last
    return steps.cummax().clip(upper=1).reindex(p.index).tolist()


def _as_they_are(rows: pd.DataFrame) -> pd.DataFrame:
    return rows


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is compared, and how it is said.

    Attributes:
        contrasts: pairs (one, other) of variants; what is reported is one minus other.
        margin: half the width of what counts as equal, in the unit of `compare`.
        setting: columns that make a setting, whose contrasts share one error rate.
        variant: column of the variant.
        by: columns that a rate is chosen by; default those of setting and variant.
        validation: metric that chooses rates; the largest, of losses the smallest.
        rows: what is made of records first, such as variants by their names.
        label: how `compare` finds a variant in the rows.
        compare: returns the gap of two labels.
        unit: of the gaps, on axes; measure, digits: their word and decimals in tables.
        say, colour: of a variant, for people.
        words: other words for verdicts, as "worse" of a loss that is ahead.
        missing: what becomes of contrasts without runs in a setting: "shown"; "counted" by Holm's
            rule, and not shown; or "left out", for they were not planned there.
    """

    contrasts: Sequence[tuple[str, str]]
    margin: float
    setting: Sequence[str] = ("data", "model")
    variant: str = "method"
    by: Sequence[str] = ()
    validation: str = "val_accuracy"
    rows: Callable[[pd.DataFrame], pd.DataFrame] = _as_they_are
    label: Callable[[str], str] = str
    compare: Callable[[pd.DataFrame, str, str], Gap] = gap
    unit: str = "points of test accuracy"
    measure: str = "points"
    digits: int = 2
    say: Callable[[str], str] = viz.label
    colour: Callable[[str], str] = viz.colour
    words: Mapping[str, str] = field(default_factory=dict)
    missing: Literal["shown", "counted", "left out"] = "shown"

    # ---- rates

    def validated(self, recorded: pd.DataFrame) -> pd.DataFrame:
        """Return the tuning seed's scores: the columns that rates are chosen by, lr, value."""
        columns = [*self._by, "lr", "value"]
        if not len(recorded):
            return pd.DataFrame(columns=columns)
        own = self._tuning(recorded)
        own = own[own.metric == self.validation]
        return own.assign(value=own.value.astype(float))[columns]

    def chosen_rates(self, recorded: pd.DataFrame) -> dict[Any, float]:
        """Return for each variant the rate that is best on validation; of equal ones the smallest.

        By a tuple of `by`, or where that is one column by its value.
        """
        falls = self.validation.endswith("loss")
        own = self.validated(recorded).sort_values(["value", "lr"], ascending=[falls, True])
        best = own.groupby(list(self._by)).head(1)
        found = {tuple(row[:-2]): float(row.lr) for row in best.itertuples(index=False)}
        return {key[0] if len(key) == 1 else key: lr for key, lr in found.items()}

    def chosen_rate(self, recorded: pd.DataFrame, *key: str) -> float:
        """Return the rate of one variant."""
        rate = self.chosen_rates(recorded).get(key)
        if rate is None:
            *where, variant = key
            raise ValueError(
                f"no rate has been chosen for {variant} on {', '.join(where)}: run the rates'"
                " sweep first, recorded, or give lr"
            )
        return rate

    def tried(self, recorded: pd.DataFrame, key: Any) -> list[float]:
        """Return the rates of a variant's runs with the tuning seed; one that diverged counts."""
        own, key = self._tuning(recorded), key if isinstance(key, tuple) else (key,)
        return sorted(own.lr[(own[list(self._by)] == list(key)).all(axis=1)].unique())

    def edges(self, recorded: pd.DataFrame) -> pd.DataFrame:
        """Return the variants whose best rate is the smallest or largest that was tried.

        Returns: a row a variant: its columns, lr, tried. Where there is one, widen the grid of all.
        """
        rows = []
        for key, lr in self.chosen_rates(recorded).items():
            tried = self.tried(recorded, key)
            if lr in (tried[0], tried[-1]):
                rows.append((*(key if isinstance(key, tuple) else (key,)), lr, shown(tried)))
        return pd.DataFrame(rows, columns=[*self._by, "lr", "tried"])

    # ---- contrasts

    def opened(self, recorded: pd.DataFrame) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
        """Yield by setting, in their order, the rows of the seeds that count."""
        if len(recorded):
            own = self.rows(recorded)
            yield from own[own.seed != TUNING_SEED].groupby(list(self.setting), sort=False)

    def contrast_gaps(
        self, recorded: pd.DataFrame, pairs: Sequence[tuple[str, str]] | None = None
    ) -> dict[tuple[Any, ...], Pair]:
        """Return the contrasts by setting and name, each with its p by Holm's rule.

        The rule is over those of a setting.

        Args:
            pairs: other contrasts than those that were named before the runs.
        """
        found = {}
        for setting, own in self.opened(recorded):
            gaps = {
                f"{one} - {other}": self.compare(own, self.label(one), self.label(other))
                for one, other in pairs or self.contrasts
            }
            ran = {name for name, each in gaps.items() if each.seeds or each.diverged}
            if self.missing == "left out":
                gaps = {name: gaps[name] for name in gaps if name in ran}
            adjusted = holm([each.p for each in gaps.values()])
            for (name, each), p in zip(gaps.items(), adjusted, strict=True):
                if name in ran or self.missing == "shown":
                    found[*setting, name] = each, p
        return found

    def verdict(self, found: Gap, p: float) -> str:
        """Say "ahead", "behind", "equal" (within the margin) or "undecided"; p is adjusted."""
        told = "undecided"
        if found.decided and p < 0.05 and not found.diverged:
            told = "ahead" if found.points > 0 else "behind"
        elif found.seeds >= ENOUGH and not found.diverged and found.p_within(self.margin) < 0.05:
            told = "equal"
        return self.words.get(told, told)

    def table(self, gaps: Named) -> pd.DataFrame:
        """Return a row a contrast: its interval, n, p, Holm's p, p of equality, the verdict."""
        rows = []
        for (*setting, name), (each, p) in gaps.items():
            row = dict(zip(self.setting, setting, strict=True)) | {"contrast": name}
            row |= {f"{self.measure} (n)": each.told(self.digits)}
            row |= {"p": each.p, "p, Holm": p}
            row |= {f"p, within {self.margin}": each.p_within(self.margin)}
            rows.append(row | {"verdict": self.verdict(each, p)})
        return pd.DataFrame(rows)

    def points(self, gaps: Named, *verdicts: str) -> list[float]:
        """Return the points of those contrasts that have one of these verdicts."""
        return [pair[0].points for pair in gaps.values() if self.verdict(*pair) in verdicts]

    def draw(self, gaps: Named, title: str) -> Figure:
        """Draw the contrasts with their paired t intervals, a panel a setting, two in a row."""
        panels: dict[str, dict[str, Pair]] = {}
        for (*setting, name), pair in gaps.items():
            panels.setdefault(self._setting(setting), {})[name] = pair
        columns = min(2, len(panels))
        lines = -(-len(panels) // columns)
        size = 5.6 * columns, 2.2 * lines + 0.4
        # an axis a panel, for pictures' intervals are many times as wide as texts'
        figure, axes = plt.subplots(lines, columns, figsize=size, squeeze=False)
        for spare in axes.flat[len(panels) :]:
            spare.remove()
        for ax, (setting, own) in zip(axes.flat, panels.items(), strict=False):
            self._draw_panel(ax, own)
            ax.set_title(setting)
        figure.suptitle(title, x=0.01, ha="left", wrap=True)
        return figure

    def _draw_panel(self, ax: Any, own: Mapping[str, Pair]) -> None:
        told = []
        for at, (name, (each, p)) in enumerate(own.items()):
            pair = name.split(" - ")
            colour = self.colour(pair[0])
            ax.plot([each.low, each.high], [at, at], color=colour, lw=2)
            ax.plot(each.points, at, marker="o", color=colour)
            names = " - ".join(map(self.say, pair))
            told.append(f"{names}: {self.verdict(each, p)} ({each.seeds})")
        ax.axvspan(-self.margin, self.margin, color="0.85", zorder=0)
        ax.set_yticks(range(len(own)), told)
        ax.invert_yaxis()
        ax.set(xlabel=self.unit)

    def _setting(self, values: Sequence[Any]) -> str:
        named = {"data": viz.label, "model": viz.label, "modules": "K = {}".format}
        return ", ".join(
            named.get(name, f"{name} {{:g}}".format)(value)
            for name, value in zip(self.setting, values, strict=True)
        )

    @property
    def _by(self) -> Sequence[str]:
        return self.by or (*self.setting, self.variant)

    def _tuning(self, recorded: pd.DataFrame) -> pd.DataFrame:
        own = self.rows(recorded)
        return own[own.seed == TUNING_SEED]


def gap_table(gaps: Mapping[tuple[Any, ...], Gap], names: Sequence[str]) -> pd.DataFrame:
    """Return a row a gap: its key in columns of these names, its fields, whether it is decided."""
    rows = [(*key, *each, each.decided) for key, each in gaps.items()]
    return pd.DataFrame(rows, columns=[*names, *Gap._fields, "decided"])


def mean_accuracies(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return n, mean and sd of the accuracies of each group, and how many runs diverged.

    A group whose runs have no accuracy has n = 0.
    """
    own = frame[frame.metric == "accuracy"].astype({"value": float})
    made = own.groupby(list(by), sort=False).value.agg(n="count", mean="mean", sd="std")
    lost = frame[frame.metric == "diverged"].astype({"value": bool})
    made = made.join(lost.groupby(list(by)).value.sum().rename("diverged"), how="outer")
    return made.assign(n=made.n.fillna(0).astype(int))


def shown(rates: Sequence[float]) -> str:
    """Return rates as tables show them."""
    return ", ".join(f"{rate:g}" for rate in rates)


def listed(items: Iterable[str]) -> str:
    """Return "a, b and c"."""
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last


def mean_and_seeds(mean: float, sd: float, n: float) -> str:
    """Return a mean as tables show it: its spread, if there is one, and how many seeds."""
    spread = "" if math.isnan(sd) else f" ± {sd:.2f}"
    return f"{mean:.2f}{spread} ({n:.0f})"
