"""The label ladder's tables: which rate was chosen, accuracies, and the contrasts named beforehand.

All are built from records, as `studies.ladder.runs.record` writes them.
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from alkit.lab import viz
from studies.common.study import TUNING_SEED, Named, Study, mean_and_seeds, shown
from studies.ladder.variants import VARIANTS

MARGIN = 0.5  # points: less than that is no difference that anybody would use
BEST_LOCAL = "best local"
CONTRASTS = (
    ("detached", "fixed_codes"),
    ("coupled", "cosine"),
    ("fixed_codes", "linear"),
    (BEST_LOCAL, "bp"),
)
SAID = {
    "bp": "backprop",
    "deep_supervision": "deep supervision",
    "linear": "linear heads",
    "cosine": "cosine heads",
    "fixed_codes": "fixed codes",
    "detached": "AL's detached codes",
    "coupled": "AL's coupled codes",
    "published": "AL as published",
    "dgl": "DGL",
    "scpl": "SCPL",
}
# H9, in all settings: what the features hold, and what reading by the nearest code loses of it
READING = (
    ("fixed_codes_head", "fixed_codes"),
    ("detached_head", "detached"),
    ("coupled_head", "coupled"),
    ("detached_head", "bp"),
    ("coupled_head", "bp"),
)
SETTING = ["data", "model"]
SHOWN = ("accuracy", "mean_of_exits", "diverged", "head_parameters", "train_s")


def say(variant: str) -> str:
    """Return a variant's name for people: "fixed codes"."""
    return SAID.get(variant, variant)


def _label(variant: str) -> str:
    """Name a variant as `alkit.lab.compare.label` reads it from a row."""
    return (
        f"{VARIANTS[variant].method} {'' if variant == 'bp' else variant}".strip()
        if variant in VARIANTS
        else variant
    )


def _named(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the records with variants by their names, setting by setting."""
    names = {variant.code: name for name, variant in VARIANTS.items()}
    return recorded.assign(variant=recorded.variant.map(names)).sort_values(SETTING, kind="stable")


STUDY = Study(
    contrasts=CONTRASTS,
    margin=MARGIN,
    variant="variant",
    rows=_named,
    label=_label,
    say=say,
    colour=lambda variant: viz.colour(_label(variant)),
)
chosen_rates, edges, contrasts = STUDY.chosen_rates, STUDY.edges, STUDY.table


def chosen_rate(recorded: pd.DataFrame, data: str, family: str, variant: str) -> float:
    """Return that rate of a variant; one with a head is to have all rates of the one below it."""
    if not VARIANTS[variant].head:
        return STUDY.chosen_rate(recorded, data, family, variant)
    own = STUDY.validated(recorded)
    own = own[(own.data == data) & (own.model == family)]
    tried, wanted = (set(own.lr[own.variant == name]) for name in (variant, VARIANTS[variant].base))
    if tried and not wanted <= tried:
        missing = ", ".join(f"{rate:g}" for rate in sorted(wanted - tried))
        raise ValueError(
            f"{variant} on {data}, {family} lacks rates {missing}: finish their sweep first"
        )
    return STUDY.chosen_rate(recorded, data, family, variant)


def best_local(recorded: pd.DataFrame, data: str, family: str) -> str | None:
    """Return the local variant with the best validation accuracy of the tuning seed, or None.

    Of equal ones the first by name.
    """
    own = STUDY.validated(recorded)
    own = own[(own.data == data) & (own.model == family)]
    rungs = [name for name, variant in VARIANTS.items() if variant.local and not variant.base]
    own = own[own.variant.isin(rungs)]
    best = own.sort_values(["value", "variant"], ascending=[False, True])
    return str(best.variant.iloc[0]) if len(best) else None


def accuracies(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row per set, network and variant: rate, n, mean and sd of the last exit, mean exit.

    Test accuracies in percent over the seeds; n counts runs that did not diverge.
    """
    rows = []
    for (data, family), setting in STUDY.opened(recorded):
        for name, variant in VARIANTS.items():
            own = setting[setting.variant == name]
            if not len(own):
                continue
            values = {each: own[own.metric == each].value.astype(float) for each in SHOWN}
            last = values["accuracy"]
            row = {
                "data": data,
                "model": family,
                "variant": variant.code,
                "name": name,
                "n": len(last),
            }
            row |= {"lr": shown([own.lr.iloc[0]]), "accuracy": last.mean(), "sd": last.std()}
            row |= {"mean_of_exits": values["mean_of_exits"].mean()}
            row |= {"diverged": int(values["diverged"].sum())}
            row |= {"head_parameters": int(values["head_parameters"].iloc[0])}
            rows.append(row | {"train_s": values["train_s"].median()})
    return pd.DataFrame(rows)


def by_variant(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row per set and network, a column per variant: test accuracy, mean, sd and n.

    Beside them the rates that were tried and the hours of one core that all runs took.
    """
    found, rows = accuracies(recorded), []
    if not len(found):
        return pd.DataFrame()
    for (data, family), own in found.groupby(["data", "model"], sort=False):
        at = recorded[(recorded.data == data) & (recorded.model == family)]
        row = {"data": data, "network": family}
        row |= {
            f"{variant.variant} {say(variant.name)}": mean_and_seeds(
                variant.accuracy, variant.sd, variant.n
            )
            for variant in own.itertuples(index=False)
            if not VARIANTS[variant.name].base
        }
        tried = sorted(at.lr[at.seed == TUNING_SEED].unique())
        hours = at.value[at.metric == "train_s"].astype(float).sum() / 3600
        rows.append(row | {"rates": shown(tried), "core-hours": f"{hours:.1f}"})
    last = ["rates", "core-hours"]
    made = pd.DataFrame(rows).fillna("")
    return made[[*made.columns.drop(last), *last]]


def contrast_gaps(recorded: pd.DataFrame, pairs: Sequence[tuple[str, str]] = CONTRASTS) -> Named:
    """Return contrasts, by default those named before the runs, see `studies.common.study.Study`.

    The local variant that is best is that of the setting, and by its own name.
    """
    found: Named = {}
    for setting, own in recorded.groupby(SETTING) if len(recorded) else ():
        best = best_local(recorded, *setting) or BEST_LOCAL
        named = [(best if one == BEST_LOCAL else one, other) for one, other in pairs]
        found = {**found, **STUDY.contrast_gaps(own, named)}
    return found


def reading(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the contrasts of `READING` that have runs, as `contrasts` does.

    Each variant at its own rate; Holm's rule is over the five of a setting.
    """
    gaps = contrast_gaps(recorded, READING)
    return contrasts({key: pair for key, pair in gaps.items() if pair[0].seeds})


def draw_contrasts(gaps: Named) -> Figure:
    """Draw three of the contrasts, a panel each, a row a setting; filled: decided or equal."""
    asked = {
        " - bp": "best local rule - backprop",
        "fixed_codes - linear": "fixed codes - linear heads",
        "detached - fixed_codes": "AL's codes - fixed codes",
    }
    fig, axes = plt.subplots(1, len(asked), figsize=(9, 3.2), sharey=True)
    for ax, (end, question) in zip(axes, asked.items(), strict=True):
        own = {key[:2]: pair for key, pair in gaps.items() if key[2].endswith(end)}
        for at, pair in enumerate(own.values()):
            face = "white" if STUDY.verdict(*pair) == "undecided" else viz.colour("local")
            ends = [[pair[0].points - pair[0].low], [pair[0].high - pair[0].points]]
            style = {"marker": "o", "color": viz.colour("local"), "markerfacecolor": face}
            ax.errorbar(pair[0].points, at, xerr=ends, capsize=3, **style)
        ax.set_yticks(range(len(own)), [", ".join(map(viz.label, key)) for key in own])
        ax.axvspan(-MARGIN, MARGIN, color="0.85", zorder=0)
        ax.set(xlabel="points of test accuracy", title=question)
    axes[0].invert_yaxis()
    last = {key: pair for key, pair in gaps.items() if key[2].endswith(" - bp")}
    held = STUDY.points(last, "ahead", "equal")
    title = f"In {len(held)} of {len(last)} settings a local rule matches or beats backprop"
    fig.suptitle(title, x=0.01, ha="left", wrap=True)
    return fig
