"""What the methods buy today and what not: a sentence a family, with numbers from the records."""

import math
from collections.abc import Callable

import pandas as pd

from alkit.figures import viz
from alkit.records import results
from alkit.records.comparisons import Gap, verdict
from studies import (
    characters_study,
    delayed_study,
    dtp_tables,
    elastic_memory,
    elastic_study,
    ladder_tables,
)
from studies.tuned import TUNING_SEED, Named, listed, spoken

__all__ = ["sentences"]

VERDICTS = ("ahead", "equal", "open", "behind")


def sentences() -> list[str]:
    """Return a sentence for each family whose records are there, in Markdown."""
    families: dict[tuple[str, str], Callable[[], str]] = {
        ("03_speed", "cpu"): _associated,
        ("32_resnet_accuracy", "cpu"): _delayed,
        ("21_pipelearn_run", "cpu"): _split,
        ("43_results", "cpu"): _elastic,
        ("52_training", "cifar"): _targets,
    }
    return [told() for record, told in families.items() if len(results.load(*record))]


def _associated() -> str:
    rows = results.load("03_speed", "cpu")
    ratios = rows[rows.metric == "pipeline_over"].astype({"value": float})
    al, both = (ratios[ratios.over == over] for over in ("al", "bp, 2 threads"))
    return (
        f"**Associated learning** on two workers is {_range(al.value)} times as fast as on one, and"
        f" {_range(both.value)} times as fast as backprop whose operators use both cores: it pays"
        " where a layer can't use a whole machine, or is on a device of its own"
        f" ([03](notebooks/03_speed.ipynb)).{_ladder()}"
    )


def _ladder() -> str:
    """Return what the label ladder decided, over all sets and each set's most blocks."""
    gaps = ladder_tables.contrast_gaps(results.load("06_label_ladder", "cpu"))
    deep = ladder_tables.contrast_gaps(results.load("08_depth", "cpu"))
    deepest = {data: network for data, network, _ in sorted(deep)}  # the last is the deepest
    gaps |= {key: pair for key, pair in deep.items() if key[1] == deepest[key[0]]}
    asked = {
        "AL's detached codes against frozen codes are": "detached - fixed_codes",
        "its coupled codes against cosine heads": "coupled - cosine",
        "the local rule that is best on validation against backprop": " - bp",
    }
    found = {
        said: {key: pair for key, pair in gaps.items() if key[2].endswith(name)}
        for said, name in asked.items()
    }
    if not all(found.values()):
        return ""
    links = "[06](notebooks/06_label_ladder.ipynb), [08](notebooks/08_depth.ipynb)"
    told = "; ".join(f"{said} {_counted(own)}" for said, own in found.items())
    return f" Accuracy in {len({key[:2] for key in gaps})} settings ({links}): {told}."


def _counted(gaps: Named) -> str:
    """Say how often each verdict fell, and the best and the worst of what is decided."""
    found = {key: verdict(*pair, ladder_tables.MARGIN) for key, pair in gaps.items()}
    said = list(found.values())
    counts = [f"{each} in {said.count(each)}" for each in VERDICTS if each in said]
    decided = [key for key, each in found.items() if each in ("ahead", "behind")]
    decided.sort(key=lambda key: -gaps[key][0].points)
    ends = [_at(key, gaps[key][0]) for key in dict.fromkeys([*decided[:1], *decided[-1:]])]
    told = f" (decided: {' to '.join(ends)})" if ends else ""
    return f"{listed(counts)}{told}"


def _at(key: tuple[str, str, str], found: Gap) -> str:
    """Return a difference with its set, and who was best locally where that is asked."""
    data, network, contrast = key
    arm, against = contrast.split(" - ")
    who = f", {ladder_tables.say(arm)}" if against == "bp" else ""
    return f"{found} points on {data} x {network}{who}"


def _decided(gaps: Named, margin: float, say: Callable[[str], str]) -> str:
    """Return who is how far from whom, with the verdict."""
    parts = []
    for (data, family, name), (found, p) in gaps.items():
        said = verdict(found, p, margin)
        told = f"{spoken(name, said, say)}{', open' if said == 'open' else ''}"
        parts.append(f"{told}: {found} points on {data} x {family}")
    return "; ".join(parts)


def _delayed() -> str:
    times = results.load("33_time_memory", "cpu")
    faster = times[(times.metric == "ratio") & (times.what == "pipedream over seq")].iloc[0]
    lost = delayed_study.gaps(results.load("32_resnet_accuracy", "cpu"))
    own = lost[lost.method == "pipedream"].set_index("modules")
    few, many = own.index.min(), own.index.max()
    return (
        f"**Delayed gradients** (PipeDream, two ranks) are {faster.value:.2f} times as fast as one;"
        f" old weights cost a small ResNet-20 {_points(own.loc[few])} points with {few} modules and"
        f" {_points(own.loc[many])} with {many} ([32](notebooks/32_resnet_accuracy.ipynb))"
        f"{_late()}."
    )


def _late() -> str:
    """Return what PipeDream's old weights cost the character model, over all settings that ran."""
    gaps = characters_study.contrast_gaps(results.load("36_language_model", "cpu"))
    costs = [
        (found.points, f"{found} nats with {modules} modules and dropout {dropout:g}")
        for (dropout, modules, name), (found, _) in gaps.items()
        if name == "pipedream - seq"
    ]
    if not costs:
        return ""
    ends = dict.fromkeys([min(costs)[1], max(costs)[1]])
    link = "([36](notebooks/36_language_model.ipynb))"
    return f", and a character model, in {len(costs)} settings, {' to '.join(ends)} {link}"


def _split() -> str:
    rows = results.load("21_pipelearn_run", "cpu")
    best = rows[rows.metric == "times_as_fast"].value.astype(float).max()
    wide = results.load("23_break_even", "cpu").astype({"value": float})
    wide = wide.pivot(index=["model", "slower", "mbit"], columns="method", values="value")
    share = (wide.idxmin(axis=1) == "pipelearn").mean()
    return (
        f"**PipeLearn**'s overlap makes an iteration of split learning up to {best:.2f} times as"
        f" fast; of the devices and links that were reckoned it is the best choice in"
        f" {100 * share:.0f} %, elsewhere one trains on the server or does not split"
        " ([23](notebooks/23_break_even.ipynb))."
    )


def _elastic() -> str:
    rivals = results.load("43_results", "rivals")
    rows = rivals if len(rivals) else results.load("43_results", "cpu")
    table = elastic_study.ablation(rows)
    own = table.loc[table.index[0][0]]
    times, ours = own["against ddp"], own.loc["elastic"]
    alone = times.reindex(["ddp_freeze_cache", "one_freeze_cache"]).max()
    without = (
        "" if math.isnan(alone) else f"; the same freezing without a pipeline {alone:.1f} times"
    )
    return (
        f"**Elastic pipelines** fine-tune {times['elastic']:.1f} times as fast as data parallel"
        f" training ({ours.low:.2f} to {ours.high:.2f} over {ours.n:.0f} seeds) where the model"
        f" fits a device{without} ([43](notebooks/43_results.ipynb))."
        f"{_budget()}"
    )


def _budget() -> str:
    """Return what fits where a rank may hold little."""
    rows = results.load("45_memory_budget", "cpu")
    if not len(rows):
        return ""
    budget = float(rows[rows.metric == "budget"].value.iloc[0]) / elastic_memory.MB
    most = elastic_memory.table(rows).total.groupby("method").max()
    return (
        f" Where a rank may hold {budget:.1f} MB, elastic training takes {most.elastic:.1f}"
        f" at most, data parallel {most.ddp:.1f}, with checkpoints {most.ddp_checkpoint:.1f}"
        " ([45](notebooks/45_memory_budget.ipynb))."
    )


def _targets() -> str:
    rows = results.load("52_training", "cifar")
    counting = rows[rows.seed != TUNING_SEED]
    spent = counting[counting.metric == "train_s"].astype({"value": float})
    median = spent.groupby("method").value.median()
    gaps = dtp_tables.contrast_gaps(rows)
    wanted = {each: pair for each, pair in gaps.items() if each[2] in ("dtp - bp", "dtp - dfa")}
    return (
        f"**Target propagation** with learned feedback takes {median.dtp / median.bp:.0f} times"
        " backprop's time: it buys no speed, it removes weight transport. Accuracy"
        f" ([52](notebooks/52_training.ipynb)): {_decided(wanted, dtp_tables.MARGIN, viz.label)}."
    )


def _range(values: pd.Series) -> str:
    return f"{values.min():.2f} to {values.max():.2f}"


def _points(row: pd.Series) -> str:
    found = Gap(*row[list(Gap._fields)])
    return str(found)
