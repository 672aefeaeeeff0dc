"""What was concluded from the published runs, beside what ours say: yes, no, or open.

*Open* is what our seeds do not decide (see `alkit.records.comparisons.Gap.decided`).
"""

import pandas as pd

from alkit.records.comparisons import ENOUGH, Gap, gap, of_seeds
from studies.delayed_study import at_chosen_rates, between, gaps

__all__ = ["bert", "resnet"]

FEW, MANY = (2, 3, 4, 6), 11  # modules
SLIGHT = 1.0  # points
LESS = 0.1  # of a loss: what counts as another one
STALE = ("pipedream", "fr", "fr, new noise")
COLUMNS = ["conclusion", "ours", "same?"]


def resnet(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row a conclusion: what was said of ResNet-20, ours, and whether it is the same."""
    lost = gaps(recorded)
    stale = lost[lost.method.isin(["pipedream", "fr"]) & (lost.modules <= max(FEW))]
    worst = max(map(_gap, stale.itertuples()), key=lambda each: each.points)
    rows = [
        (
            "2 to 6 modules lose slightly (below a point)",
            f"up to {worst}",
            _verdict(worst.less(SLIGHT), behind=False),
        )
    ]
    at = at_chosen_rates(recorded)
    for method in ("fr", "pipedream"):
        own = sorted({int(count) for count in at[at.method == method].modules})
        if len(own) > 1:
            more = gap(at, f"{method} K={own[0]}", f"{method} K={own[-1]}")
            said = f"{own[0]} - {own[-1]} modules {more}"
            rows.append((f"more modules lose more ({method})", said, _verdict(more)))
    for row in between(recorded, "pipedream", "fr").itertuples():
        if row.modules not in (*FEW, MANY):
            continue
        behind = row.modules != MANY  # FR was ahead with 11 modules and behind with fewer
        text = f"{row.modules} modules: FR {'behind' if behind else 'ahead of'} PipeDream"
        found = _gap(row)
        rows.append((text, f"PipeDream - FR {found}", _verdict(found, behind=behind)))
    return pd.DataFrame(rows, columns=COLUMNS)


def bert(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the same for the reduced BERT, from losses at the end and runs that diverged.

    Losses are each method's at its best rate, with the most modules that all methods have run with.
    """
    final = recorded[recorded.metric == "final_loss"].astype({"value": float})
    best = final.groupby(["method", "modules"]).value.min()
    counts = [set(final[final.method == method].modules) for method in STALE]
    if not (shared := set.intersection(*counts)) or ("seq", 1) not in best.index:
        return pd.DataFrame(columns=COLUMNS)  # not all of them have run yet
    most = max(shared)
    seq, pipedream = best["seq", 1], best["pipedream", most]
    fr, new = best["fr", most], best["fr, new noise", most]
    lost = recorded[recorded.metric == "diverged"].astype({"value": bool})
    behind = _behind(final, ("pipedream", most), ("seq", 1))
    worse = [_behind(final, (name, most), ("pipedream", most)) for name in STALE[1:]]
    rows = [
        (
            "PipeDream ends at almost the loss of sequential training",
            f"{pipedream:.2f} against {seq:.2f} ({behind.seeds})",
            _verdict(behind.less(LESS), behind=False),
        ),
        (
            "FR ends worse than both",
            f"{new:.2f} with new noise, {fr:.2f} with replayed noise ({worse[0].seeds})",
            f"with new noise: {_verdict(worse[1])}; replayed: {_verdict(worse[0])}",
        ),
        (
            "rates at which sequential training learns are too large for stale methods",
            *_too_large(final, int(lost.value.sum()), len(lost)),
        ),
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _behind(final: pd.DataFrame, one: tuple[str, int], other: tuple[str, int]) -> Gap:
    """Return by how much the final loss of one is above that of the other, seed by seed."""
    wide = final.groupby(["method", "modules", "lr", "seed"]).value.min().unstack()
    at_best = []
    for method in (one, other):
        rates = wide.loc[method]  # a row a rate, a column a seed
        at_best.append(rates.loc[rates.mean(axis=1).idxmin()])
    return of_seeds(at_best[0] - at_best[1])


def _too_large(final: pd.DataFrame, diverged: int, runs: int) -> tuple[str, str]:
    """Say at which rate most stale runs end where nothing has been learnt, and seq does not."""
    nothing = final.value.max()
    learnt = final.assign(learnt=nothing - final.value > LESS)
    for lr, own in learnt.groupby("lr"):
        stale = own[own.method != "seq"]
        if own[own.method == "seq"].learnt.all() and stale.learnt.mean() < 0.5:
            ends = own[own.method == "seq"].value.mean()
            said = f"at {lr:g} it ends at {ends:.2f}, {len(stale) - stale.learnt.sum()} of"
            said += f" {len(stale)} stale runs at {stale.value.median():.2f}"
            enough = own.seed.nunique() >= ENOUGH
            return f"{said}; {diverged} of {runs} runs diverged", "yes" if enough else "open"
    return f"no such rate was tried; {diverged} of {runs} runs diverged", "open"


def _gap(row: tuple) -> Gap:
    return Gap(*(getattr(row, name) for name in Gap._fields))


def _verdict(found: Gap, *, behind: bool = True) -> str:
    """Say whether the gap is what was published: on the side of `behind`."""
    if not found.decided:
        return "open"
    return "yes" if (found.points > 0) == behind else "no"
