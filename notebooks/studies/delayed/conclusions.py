"""What was concluded from the published runs, beside what ours say: yes, no, or open.

*Open* is what our seeds do not decide (see `alkit.records.comparisons.Gap.decided`).
"""

import pandas as pd

from alkit.figures import viz
from alkit.records.comparisons import Gap, gap
from studies.delayed import characters_study
from studies.delayed.accuracy_study import at_chosen_rates, between, gaps

FEW, MANY = (2, 3, 4, 6), 11  # modules
SLIGHT = 1.0  # points
PAIRS = (("pipedream", "seq"), ("fr", "pipedream"), ("fr, new noise", "pipedream"))
COLUMNS = ["conclusion", "ours", "same?"]


def resnet(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row a conclusion: what was said of ResNet-20, ours, and whether it is the same."""
    lost = gaps(recorded)
    stale = lost[lost.method.isin(["pipedream", "fr"]) & (lost.modules <= max(FEW))]
    worst = max(map(_gap, stale.itertuples()), key=lambda each: each.points)
    rows = [
        (
            "2 to 6 modules lose slightly (below a point)",
            f"{_counted(stale.modules)} modules: up to {worst}",
            _agrees(-1, worst.less(SLIGHT)),
        )
    ]
    at = at_chosen_rates(recorded)
    for method in ("fr", "pipedream"):
        own = sorted({int(count) for count in at[at.method == method].modules})
        if len(own) > 1:
            more = gap(at, f"{method} K={own[0]}", f"{method} K={own[-1]}")
            said = f"{own[0]} - {own[-1]} modules {more}"
            rows.append((f"more modules lose more ({method})", said, _agrees(1, more)))
    for row in between(recorded, "pipedream", "fr").itertuples():
        if row.modules not in (*FEW, MANY):
            continue
        behind = row.modules != MANY  # FR was ahead with 11 modules and behind with fewer
        text = f"{row.modules} modules: FR {'behind' if behind else 'ahead of'} PipeDream"
        found = _gap(row)
        rows.append((text, f"PipeDream - FR {found}", _agrees(1 if behind else -1, found)))
    return pd.DataFrame(rows, columns=COLUMNS)


def transformer(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the same for the published BERT, answered by the character model's records.

    Ours is another network on another task: a small BERT learns too little in the time at hand for
    any method to differ from another. It is judged in the setting at which its rates were chosen.
    """
    gaps = characters_study.contrast_gaps(recorded, PAIRS)
    first = {key[2]: pair for key, pair in gaps.items() if key[:2] == characters_study.TUNED}
    if not first:
        return pd.DataFrame(columns=COLUMNS)
    said = {name: f"{found} nats" for name, (found, _) in first.items()}
    worse = {name: characters_study.STUDY.verdict(*pair) for name, pair in first.items()}
    late, fr, new = (f"{one} - {other}" for one, other in PAIRS)
    rates = characters_study.chosen_rates(recorded)
    lower = ", ".join(f"{viz.label(m)} {rates[m]:g}" for m in ("seq", "pipedream", "fr"))
    rows = [
        (
            "PipeDream ends at almost the loss of sequential training",
            said[late],
            {"worse": "no", "equal": "yes"}.get(worse[late], "undecided"),
        ),
        (
            "FR ends worse than both",
            f"than PipeDream: {said[new]} with new noise, {said[fr]} with replayed noise",
            f"with new noise: {_yes(worse[new])}; replayed: {_yes(worse[fr])}",
        ),
        (
            "rates at which sequential training learns are too large for stale methods",
            f"best rates, one seed: {lower}",
            "undecided",
        ),
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _counted(modules: pd.Series) -> str:
    """Return the numbers of modules that have runs: "2, 3"."""
    return ", ".join(str(int(count)) for count in sorted(modules.unique()))


def _yes(worse: str) -> str:
    return {"worse": "yes", "equal": "no", "better": "no"}.get(worse, "undecided")


def _gap(row: tuple) -> Gap:
    return Gap(*(getattr(row, name) for name in Gap._fields))


def _agrees(theirs: float, ours: Gap) -> str:
    """Say whether a published difference, or its sign, and ours name the same method as ahead."""
    if not ours.decided:
        return "undecided"
    return "yes" if (theirs > 0) == (ours.points > 0) else "no"
