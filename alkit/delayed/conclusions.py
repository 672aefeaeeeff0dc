"""What was concluded from the published runs, beside what ours say: yes, no, or open.

*Open* is what an interval that holds 0 leaves undecided.
"""

import pandas as pd

from alkit.delayed.study import between, gaps

__all__ = ["bert", "resnet"]

FEW, MANY = (2, 3, 4, 6), 11  # modules
SLIGHT = 1.0  # points
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

    One seed gives no interval: a loss counts as another from a tenth on.
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
    stale = lost[lost.method != "seq"]
    by_rate = stale.groupby("lr").value.mean()
    rows = [
        (
            "PipeDream ends at almost the loss of sequential training",
            f"{pipedream:.2f} against {seq:.2f}",
            "yes" if pipedream - seq < 0.1 else "no",
        ),
        (
            "FR ends worse than both",
            f"{new:.2f} with new noise, {fr:.2f} with replayed noise",
            f"with new noise: {_more(new, pipedream)}; replayed: {_more(fr, pipedream)}",
        ),
        (
            "large rates make stale methods diverge, sequential training not",
            f"{by_rate.iloc[-1]:.0%} of stale runs at {by_rate.index[-1]:g}, "
            f"{by_rate.iloc[0]:.0%} at {by_rate.index[0]:g}",
            "yes" if by_rate.iloc[-1] > by_rate.iloc[0] else "no",
        ),
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _verdict(sure: float, best: float) -> str:
    """Yes if even the interval's end says so, no if not even the middle does."""
    return "yes" if sure > 0 else "open" if best > 0 else "no"


def _more(one: float, other: float) -> str:
    return "yes" if one - other > 0.1 else "no"
