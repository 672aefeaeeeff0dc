"""The label ladder's tables: which rate was chosen, accuracies, and the contrasts named beforehand.

All are built from records, as `studies.ladder_study.record` writes them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from alkit.figures.viz import colour
from alkit.records.comparisons import ENOUGH, Gap, gap, holm
from studies.ladder_arms import ARMS
from studies.ladder_study import TUNING_SEED

__all__ = [
    "CONTRASTS",
    "EXPLORED",
    "MARGIN",
    "accuracies",
    "best_local",
    "chosen_rate",
    "chosen_rates",
    "contrast_gaps",
    "contrasts",
    "draw_contrasts",
    "edges",
    "explored",
    "verdict",
]

MARGIN = 0.5  # points: less than that is no difference that anybody would use
BEST_LOCAL = "best local"
CONTRASTS = (
    ("detached", "fixed_codes"),
    ("coupled", "cosine"),
    ("fixed_codes", "linear"),
    (BEST_LOCAL, "bp"),
)
# one thing changed at a time; not named beforehand, so they get intervals and no verdict
EXPLORED = (
    *((name, arm.base) for name, arm in ARMS.items() if arm.base),
    ("trained_codes", "fixed_codes"),
    ("narrow_detached", "narrow_fixed"),
)
SETTING = ["data", "model"]
SHOWN = ("accuracy", "mean_of_exits", "diverged", "head_parameters", "train_s")


def chosen_rates(recorded: pd.DataFrame) -> dict[tuple[str, str, str], float]:
    """Return by (data, network, arm) the rate that is best on validation with the tuning seed.

    Of equal ones the smallest.
    """
    own = _tuning(recorded)
    if not len(own):
        return {}
    best = own.sort_values(["value", "lr"], ascending=[False, True])
    best = best.groupby([*SETTING, "trained"]).head(1)
    return {(row.data, row.model, row.trained): row.lr for row in best.itertuples()}


def chosen_rate(recorded: pd.DataFrame, data: str, family: str, arm: str) -> float:
    """Return that rate of one arm; one that changes another takes that one's.

    Raises:
        ValueError: none has been chosen yet; says what to run.
    """
    arm = ARMS[arm].base or arm
    rate = chosen_rates(recorded).get((data, family, arm))
    if rate is None:
        raise ValueError(
            f"no rate has been chosen for {arm} of {family} on {data}: run the rates' sweep first,"
            " recorded, or give lr"
        )
    return rate


def edges(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the arms whose best rate is the smallest or largest that was tried.

    Returns: a row an arm: data, model, arm, lr, tried. Where there is one, widen all arms' grid.
    """
    own, rows = _tuning(recorded), []
    for (data, family, arm), lr in chosen_rates(recorded).items():
        at = (own.data == data) & (own.model == family) & (own.trained == arm)
        tried = sorted(own.lr[at])
        if lr in (tried[0], tried[-1]):
            rows.append((data, family, arm, lr, ", ".join(f"{rate:g}" for rate in tried)))
    return pd.DataFrame(rows, columns=[*SETTING, "arm", "lr", "tried"])


def best_local(recorded: pd.DataFrame, data: str, family: str) -> str | None:
    """Return the local arm that is best on validation with the tuning seed at its rate, or None."""
    own = _tuning(recorded)
    own = own[(own.data == data) & (own.model == family)]
    rungs = [name for name, arm in ARMS.items() if arm.local and not arm.base]
    own = own[own.trained.isin(rungs)]
    return None if not len(own) else str(own.trained[own.value.idxmax()])


def accuracies(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row a set, network and arm: rate, n, mean and sd of the last exit and of the mean.

    Test accuracies in percent over the seeds; n counts runs that did not diverge.
    """
    rows = []
    for (data, family), setting in _opened(recorded):
        for name, arm in ARMS.items():
            own = setting[setting.arm == arm.code]
            if not len(own):
                continue
            values = {each: own[own.metric == each].value.astype(float) for each in SHOWN}
            last = values["accuracy"]
            row = {"data": data, "model": family, "arm": arm.code, "name": name, "n": len(last)}
            row |= {"lr": own.lr.iloc[0], "accuracy": last.mean(), "sd": last.std()}
            row |= {"mean_of_exits": values["mean_of_exits"].mean()}
            row |= {"diverged": int(values["diverged"].sum())}
            row |= {"head_parameters": int(values["head_parameters"].iloc[0])}
            rows.append(row | {"train_s": values["train_s"].median()})
    return pd.DataFrame(rows)


def contrast_gaps(
    recorded: pd.DataFrame, pairs: Sequence[tuple[str, str]] = CONTRASTS
) -> dict[tuple[str, str, str], tuple[Gap, float]]:
    """Return contrasts, by default those named before the runs, by (data, network, contrast).

    Returns: the gap of the last exits' test accuracies, and its p by Holm's rule over the
        contrasts of its set and network.
    """
    found = {}
    for (data, family), own in _opened(recorded):
        gaps: dict[str, Gap] = {}
        for better, worse in pairs:
            if better == BEST_LOCAL:
                better = best_local(recorded, data, family) or better
            gaps[f"{better} - {worse}"] = gap(own, _label(better), _label(worse))
        adjusted = holm([each.p for each in gaps.values()])
        for (name, each), p in zip(gaps.items(), adjusted, strict=True):
            found[data, family, name] = each, p
    return found


def contrasts(gaps: Mapping[tuple[str, str, str], tuple[Gap, float]]) -> pd.DataFrame:
    """Return a row a contrast: both intervals, n, p, Holm's p, p of equality, and the verdict."""
    rows = []
    for (data, family, name), (each, p) in gaps.items():
        row = {"data": data, "model": family, "contrast": name, "points (n)": str(each)}
        row |= {"bootstrap": each.bootstrap, "p": each.p, "p, Holm": p}
        row |= {f"p, within {MARGIN}": each.p_within(MARGIN), "verdict": verdict(each, p)}
        rows.append(row)
    return pd.DataFrame(rows)


def explored(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the differences of `EXPLORED` that have runs: both intervals and n, no verdict."""
    gaps = contrast_gaps(recorded, EXPLORED)
    found = contrasts({key: pair for key, pair in gaps.items() if pair[0].seeds})
    return found.drop(columns=["p", "p, Holm", "verdict"], errors="ignore")


def draw_contrasts(gaps: Mapping[tuple[str, str, str], tuple[Gap, float]]) -> Figure:
    """Draw the contrasts with their paired t intervals, a panel a set and network."""
    settings = list(dict.fromkeys(key[:2] for key in gaps))
    size = 4.4 * len(settings), 2.6
    fig, axes = plt.subplots(1, len(settings), figsize=size, squeeze=False, sharex=True)
    for ax, setting in zip(axes[0], settings, strict=True):
        own = {key[2]: pair for key, pair in gaps.items() if key[:2] == setting}
        for at, (each, _) in enumerate(own.values()):
            ax.plot([each.low, each.high], [at, at], color=colour("al"), lw=2)
            ax.plot(each.points, at, marker="o", color=colour("al"))
        ax.axvspan(-MARGIN, MARGIN, color="0.85", zorder=0)
        names = [f"{name}: {verdict(*pair)} ({pair[0].seeds})" for name, pair in own.items()]
        ax.set_yticks(range(len(own)), names)
        ax.invert_yaxis()
        ax.set(xlabel="points", title=", ".join(setting))
    return fig


def verdict(found: Gap, p: float) -> str:
    """Say what a contrast shows: "ahead", "behind", "equal" (within the margin) or "open".

    Args:
        p: adjusted for the other contrasts.
    """
    if found.seeds < ENOUGH or found.diverged:
        return "open"
    if found.decided and p < 0.05:
        return "ahead" if found.points > 0 else "behind"
    return "equal" if found.p_within(MARGIN) < 0.05 else "open"


def _opened(recorded: pd.DataFrame) -> Iterable[tuple[Any, pd.DataFrame]]:
    """Return by (data, network) the rows of the seeds that count."""
    if not len(recorded):
        return ()
    return recorded[recorded.seed != TUNING_SEED].groupby(SETTING, sort=False)


def _tuning(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the validation accuracies of the tuning seed; the arm's name stands in `trained`."""
    if not len(recorded):
        return pd.DataFrame(columns=[*SETTING, "lr", "value", "trained"])
    own = recorded[(recorded.metric == "val_accuracy") & (recorded.seed == TUNING_SEED)]
    names = {arm.code: name for name, arm in ARMS.items()}
    return own.assign(value=own.value.astype(float), trained=own.arm.map(names))


def _label(arm: str) -> str:
    """Name an arm as `alkit.records.study.label` reads it from a row."""
    return f"{ARMS[arm].method} {'' if arm == 'bp' else arm}".strip() if arm in ARMS else arm
