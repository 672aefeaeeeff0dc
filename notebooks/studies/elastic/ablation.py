"""The rows of the ablation: which switches are on, and what is measured of each."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

import alkit
from alkit.elastic.encoder import BertSizes, ViTSizes, bert_classifier, vit_classifier
from alkit.elastic.network import Network
from alkit.engine.trainer import Record
from alkit.lab import results
from alkit.lab.compare import gap
from alkit.lab.viz import colour, label
from studies.common.published import published
from studies.common.study import mean_and_seeds
from studies.elastic.rivals import RIVALS, rival
from studies.elastic.tasks import Task

# the published rows; the first is the pipeline that nothing changes
VARIANTS: dict[str, dict[str, Any]] = {
    "1f1b": {"freeze": "none", "pipe": False, "dp": False, "cache": False},
    "freeze": {"pipe": False, "dp": False, "cache": False},
    "freeze_pipe_cache": {"dp": False},
    "freeze_pipe_dp": {"cache": False},
    "elastic": {},
    # the same freezing without any pipeline, and no training below the head
    "ddp_freeze_cache": {"stages": 1},
    "one_freeze_cache": {"stages": 1},
    "head_cache": {"stages": 1, "freeze": "none"},
}


def network_for(
    task: Task, *, layers: int = 12, width: int = 64, heads: int = 4, patch: int = 8, seed: int = 0
) -> Network:
    """Return a ViT for pictures or a BERT for texts, both without dropout."""
    if task.tokenizer is None:
        channels, side = task.image
        sizes = ViTSizes(layers, width, heads, 2 * width, patch, side, channels, task.classes, 0.0)
        return vit_classifier(sizes, seed=seed)
    tokens = task.train.x[0].shape[1]
    vocabulary = task.tokenizer.get_vocab_size()
    return bert_classifier(
        text_sizes(layers, width, heads, vocabulary, tokens), task.classes, seed=seed
    )


def text_sizes(layers: int, width: int, heads: int, vocabulary: int, tokens: int) -> BertSizes:
    """Return the sizes of the BERT that is pretrained and fine-tuned here."""
    std = 0.02 * math.sqrt(768 / width)  # published at 768; a sum of `width` terms keeps its size
    return BertSizes(layers, width, heads, 2 * width, vocabulary, tokens, dropout=0.0, std=std)


def measured(
    variant: str, network: Network, task: Task, settings: Mapping[str, Any], *, ranks: int = 2
) -> Record:
    """Train one row, a name of VARIANTS or of RIVALS.

    "one_freeze_cache" is one process, which has the operator threads of all ranks.

    Args:
        settings: keywords of `alkit.fit`, see `studies.elastic.recipe`; layers freeze by the
            schedule unless the row says otherwise.
    """
    if variant in RIVALS:
        parts = {"validation": task.validation, "test": task.test, "settings": settings}
        return rival(network, task.train, ranks=ranks, **parts)
    if variant not in VARIANTS:
        raise ValueError(f"variant is {variant!r}: give {', '.join([*VARIANTS, *RIVALS])}")
    settings = {"freeze": "schedule", **settings, **VARIANTS[variant]}
    if variant == "head_cache":
        network.freeze(network.layers)
    if variant == "one_freeze_cache":
        settings, ranks = settings | {"threads": ranks * settings.get("threads", 1)}, 1
    options: dict[str, Any] = {"ranks": ranks, "progress": False, **settings}
    # with a validation part the best epoch's weights would be the result: a row has the last one's
    found = alkit.fit(network, task.train, test=task.test, method="elastic", **options)
    last = float(alkit.evaluate(found.model, task.validation).mean())
    return replace(found, history=found.history.assign(val_acc=last))


def seconds(record: Record) -> float:
    """Return the seconds of training and of all changes; evaluation is not counted."""
    return float(record.history.train_s.sum() + record.history.change_s.sum())


def record(
    run: results.Run, variant: str, alpha: float, seed: int, trained: Record, task: Task
) -> None:
    """Write one row's values into a run's record, all that tables and figures are built from."""
    right = trained.test_correct
    assert right is not None
    rows = [
        ("seconds", seconds(trained), "s"),
        ("accuracy", 100 * float(right.mean()), "%"),
        ("val_acc", 100 * float(trained.history.val_acc.iloc[-1]), "%"),
        ("epoch_s", [round(float(value), 4) for value in trained.history.train_s], "s"),
    ]
    model = "vit" if task.tokenizer is None else "bert"
    about = {"method": variant, "model": model, "data": task.name, "seed": seed, "n": len(right)}
    extra = {"alpha": round(alpha, 4)}
    if VARIANTS.get(variant, {}).get("freeze") != "none" and variant not in RIVALS:
        extra["recipe"] = f"alpha={alpha:.2f}"
    for metric, value, unit in rows:
        run.record(metric, value, unit=unit, extra=extra, **about)


def ablation(recorded: pd.DataFrame, alpha: float = 1 / 3) -> pd.DataFrame:
    """Return a row a data set and variant: times as fast as ddp and as 1f1b, seconds, accuracy.

    Seconds and ratios are medians over seeds, a ratio within a seed; accuracy is a mean. Ratios to
    a row that is not there are NaN.

    Args:
        alpha: of the variants that freeze.
    """
    wide = _wide(_at(recorded, alpha))
    wide = wide.assign(by_ddp=_times(wide, "ddp"), by_pipe=_times(wide, "1f1b"))
    found = wide.groupby(["data", "method"], sort=False).agg(
        by_ddp=("by_ddp", "median"),
        low=("by_ddp", "min"),
        high=("by_ddp", "max"),
        by_pipe=("by_pipe", "median"),
        pipe_low=("by_pipe", "min"),
        pipe_high=("by_pipe", "max"),
        seconds=("seconds", "median"),
        accuracy=("accuracy", "mean"),
        sd=("accuracy", "std"),
        n=("seed", "nunique"),
    )
    return found.rename(columns={"by_ddp": "against ddp", "by_pipe": "times as fast"})


def fitting_epochs(recorded: pd.DataFrame, alpha: float = 1 / 3) -> pd.Series:
    """Return, by data set, how many epochs of ddp take elastic training's time, to the nearest."""
    at = _at(recorded, alpha)
    whole = at[(at.method == "elastic") & (at.metric == "seconds")]
    ours = whole.astype({"value": float}).groupby("data").value.median()
    epochs = at[(at.method == "ddp") & (at.metric == "epoch_s")].explode("value")
    theirs = epochs.astype({"value": float}).groupby("data").value.median()
    return (ours / theirs).dropna().round().astype(int)


def readable(chosen: pd.DataFrame) -> pd.DataFrame:
    """Return `ablation`'s rows with names and spreads for people."""
    rows = [
        {
            "data": data,
            "what runs": label(method),
            "against data parallel": _spread(row["against ddp"], row.low, row.high),
            "against the pipeline": _spread(row["times as fast"], row.pipe_low, row.pipe_high),
            "seconds": round(row.seconds, 1),
            "accuracy, % (n seeds)": mean_and_seeds(row.accuracy, row.sd, row.n),
        }
        for (data, method), row in chosen.iterrows()
    ]
    return pd.DataFrame(rows)


def alphas(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row a data set and alpha of all four switches, next to never freezing.

    Columns: seconds, times as fast as 1f1b, val_acc, accuracy, points lost to 1f1b with their two
    intervals, and whether this alpha is the best on validation.
    """
    rows = []
    for name, own in recorded.groupby("data", sort=False):
        wide = _wide(own)
        still = wide[wide.method == "1f1b"]
        full = wide[wide.method == "elastic"]
        if not len(still) or not len(full):
            continue
        best = full.groupby("alpha").val_acc.mean().idxmax()
        for alpha, part in full.groupby("alpha"):
            lost = gap(own, "1f1b", f"elastic alpha={alpha:.2f}")
            both = part.merge(still, on="seed", suffixes=("", "_still"))
            faster = (both.seconds_still / both.seconds).median()
            row = (name, alpha, part.seconds.median(), faster, part.val_acc.mean())
            mark = "*" if alpha == best else ""
            rows.append((*row, part.accuracy.mean(), str(lost), mark))
    names = ["data", "alpha", "seconds", "times as fast", "val_acc", "accuracy"]
    names += ["points lost (n)", "best on validation"]
    return pd.DataFrame(rows, columns=names).set_index(["data", "alpha"])


def beside_published(chosen: pd.DataFrame) -> pd.DataFrame:
    """Return the published ratios beside ours: the same order of rows, by pairs that we have."""
    theirs = published("elastic_speed")
    names = ["1f1b", "freeze", "freeze_pipe_cache", "freeze_pipe_dp", "elastic"]
    beside = pd.DataFrame({"published": theirs.times_as_fast.to_numpy()}, index=names)
    for name, own in chosen.groupby(level="data", sort=False):
        beside[name] = own.droplevel("data")["times as fast"].reindex(names)
        both = beside[["published", name]].dropna()
        order = both.published.rank().tolist() == both[name].rank().tolist()
        beside[f"{name}: same order?"] = "yes" if order else "no"
    return beside


def _at(recorded: pd.DataFrame, alpha: float) -> pd.DataFrame:
    return recorded[(recorded.alpha - alpha).abs() < 1e-3]


def _times(wide: pd.DataFrame, base: str) -> list[float]:
    """Return how many times as fast as the row `base` of its seed every run is; NaN without it."""
    seconds = wide[wide.method == base].set_index(["data", "seed"]).seconds
    keys = pd.MultiIndex.from_frame(wide[["data", "seed"]])
    return list(seconds.reindex(keys).to_numpy() / wide.seconds.to_numpy())


def _spread(middle: float, low: float, high: float) -> str:
    return "" if math.isnan(middle) else f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def _wide(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row a run: data, method, alpha, seed, seconds, accuracy, val_acc."""
    shown = recorded.metric.isin(["seconds", "accuracy", "val_acc"])
    own = recorded[shown].astype({"value": float})
    keys = ["data", "method", "alpha", "seed"]
    order = own[keys].drop_duplicates()
    wide = own.pivot_table(index=keys, columns="metric", values="value", aggfunc="last")
    return order.merge(wide.reset_index(), on=keys)


def draw(rows: pd.DataFrame) -> Figure:
    """Draw how many times as fast as data parallel training each method is, with its accuracy."""
    chosen = ablation(rows)
    tasks = chosen.index.get_level_values("data").unique()
    beside = chosen["against ddp"].notna().any()
    base, other = ("against ddp", "ddp") if beside else ("times as fast", "1f1b")
    size = 4.8 * len(tasks), 1.2 + 0.28 * chosen.index.get_level_values("method").nunique()
    fig, axes = plt.subplots(1, len(tasks), figsize=size, squeeze=False)
    for ax, which in zip(axes[0], tasks, strict=True):
        own = chosen.loc[which].sort_values(base, ascending=False)
        points = zip(own.index, own.accuracy, strict=True)
        names = [f"{label(each)}: {accuracy:.1f} %" for each, accuracy in points]
        bars = {"xerr": [own[base] - own.low, own.high - own[base]] if beside else None}
        bars |= {"color": list(map(colour, own.index)), "error_kw": {"capsize": 2}}
        ax.barh(names, own[base], **bars)
        ax.axvline(1, color="0.35", lw=1)
        ax.grid(visible=False, axis="y")
        ax.set(xlabel=f"times as fast as {label(other)}")
        ax.set_title(label(which))
        ax.invert_yaxis()
    ours = chosen.loc[tasks[0]][base]
    title = f"{label(tasks[0])}: elastic is {ours['elastic']:.1f} times as fast as"
    fig.suptitle(f"{title} {label(other)}", x=0.01, ha="left", wrap=True)
    return fig
