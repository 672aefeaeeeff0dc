"""What was concluded from the published runs, beside what ours say: yes, no, or open.

*Open* is what an interval that holds 0 leaves undecided.
"""

import pandas as pd

from alkit.delayed.study import between, gaps

__all__ = ["bert", "resnet"]

FEW, MANY = (2, 3, 4, 6), 11  # modules
SLIGHT = 1.0  # points
LESS = 0.1  # of a loss: what counts as another one, for one seed gives no interval
STALE = ("pipedream", "fr", "fr, new noise")
COLUMNS = ["conclusion", "ours", "same?"]


def resnet(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row a conclusion: what was said of ResNet-20, ours, and whether it is the same."""
    lost, fr = gaps(recorded), between(recorded, "pipedream", "fr")
    stale = lost[lost.method.isin(["pipedream", "fr"])]
    worst = stale[stale.modules <= max(FEW)].points.max()
    rows = [
        (
            "2 to 6 modules lose slightly (below a point)",
            f"up to {worst:.1f} points",
            "yes" if worst < SLIGHT else "no",
        )
    ]
    for method, own in stale.groupby("method"):
        own = own.sort_values("modules")
        first, last = own.iloc[0], own.iloc[-1]
        if first.modules == last.modules:
            continue
        said = f"{first.points:.1f} with {first.modules}, {last.points:.1f} with {last.modules}"
        same = _verdict(last.low - first.high, last.points - first.points)
        rows.append((f"more modules lose more ({method})", said, same))
    for count in (*FEW, MANY):
        if not len(own := fr[fr.modules == count]):
            continue
        row = own.iloc[0]
        ahead = count == MANY  # FR was ahead with 11 modules and behind with fewer
        said = f"PipeDream - FR {row.points:+.1f} [{row.low:+.1f}, {row.high:+.1f}]"
        sure, best = (-row.high, -row.points) if ahead else (row.low, row.points)
        text = f"{count} modules: FR {'ahead of' if ahead else 'behind'} PipeDream"
        rows.append((text, said, _verdict(sure, best)))
    return pd.DataFrame(rows, columns=COLUMNS)


def bert(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the same for the reduced BERT, from losses at the end and runs that diverged.

    Losses are the best of all rates, with the most modules that all methods have run with.
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
    rows = [
        (
            "PipeDream ends at almost the loss of sequential training",
            f"{pipedream:.2f} against {seq:.2f}",
            "yes" if pipedream - seq < LESS else "no",
        ),
        (
            "FR ends worse than both",
            f"{new:.2f} with new noise, {fr:.2f} with replayed noise",
            f"with new noise: {_more(new, pipedream)}; replayed: {_more(fr, pipedream)}",
        ),
        ("rates at which sequential training learns are too large for stale methods",
         *_too_large(final, int(lost.value.sum()), len(lost))),
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


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
            return f"{said}; {diverged} of {runs} runs diverged", "yes"
    return f"no such rate was tried; {diverged} of {runs} runs diverged", "no"


def _verdict(sure: float, best: float) -> str:
    """Yes if even the interval's end says so, no if not even the middle does."""
    return "yes" if sure > 0 else "open" if best > 0 else "no"


def _more(one: float, other: float) -> str:
    return "yes" if one - other > LESS else "not shown"
