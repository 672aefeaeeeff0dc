"""The rows of the ablation: which switches are on, and what is measured of each."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

import alkit
from alkit.elastic.encoder import BertSizes, ViTSizes, bert_classifier, vit_classifier
from alkit.elastic.network import Network
from alkit.engine.trainer import Record
from alkit.lab import results
from alkit.lab.compare import gap
from studies.elastic.rivals import data_parallel
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
RIVALS = ("ddp", "ddp_fewer")  # torch's data parallel training


def network_for(
    task: Task, *, layers: int = 12, width: int = 64, heads: int = 4, patch: int = 8, seed: int = 0
) -> Network:
    """Return a ViT for pictures or a BERT for texts, both without dropout."""
    if task.tokenizer is None:
        channels, side = task.image
        sizes = ViTSizes(layers, width, heads, 2 * width, patch, side, channels, task.classes, 0.0)
        return vit_classifier(sizes, seed=seed)
    tokens = task.train.x[0].shape[1]
    vocabulary, std = task.tokenizer.get_vocab_size(), 0.02 * math.sqrt(768 / width)  # as at 768
    given = BertSizes(layers, width, heads, 2 * width, vocabulary, tokens, dropout=0.0, std=std)
    return bert_classifier(given, task.classes, seed=seed)


def measured(
    variant: str, network: Network, task: Task, settings: Mapping[str, Any], *, ranks: int = 2
) -> Record:
    """Train one row, a name of VARIANTS or of RIVALS; "ddp_fewer" is "ddp" for fewer epochs.

    "one_freeze_cache" is one process, which has the operator threads of all ranks.

    Args:
        settings: keywords of `alkit.fit`, see `studies.elastic.recipe`; layers freeze by the
            schedule unless the row says otherwise.
    """
    if variant not in {*VARIANTS, *RIVALS}:
        raise ValueError(f"variant is {variant!r}: give {', '.join([*VARIANTS, *RIVALS])}")
    options: dict[str, Any] = {"freeze": "schedule", **settings, **VARIANTS.get(variant, {})}
    if variant in RIVALS:
        found = data_parallel(network, task.train, settings, ranks=ranks)
    else:
        if variant == "head_cache":
            network.freeze(network.layers)
        if variant == "one_freeze_cache":
            options, ranks = options | {"threads": ranks * settings.get("threads", 1)}, 1
        options |= {"ranks": ranks, "progress": False, "method": "elastic"}
        found = alkit.fit(network, task.train, **options)
    # with a validation part the best epoch's weights would be the result: a row has the last one's
    last = float(alkit.evaluate(found.model, task.validation).mean())
    right = alkit.evaluate(found.model, task.test)
    return replace(found, history=found.history.assign(val_acc=last), test_correct=right)


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
    if variant not in RIVALS and VARIANTS[variant].get("freeze") != "none":
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


def alphas(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row a data set and alpha of all four switches, next to never freezing.

    Columns: seconds, times as fast as 1f1b, val_acc, accuracy, points lost to 1f1b with their
    interval, and whether this alpha is the best on validation.
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


def _at(recorded: pd.DataFrame, alpha: float) -> pd.DataFrame:
    return recorded[(recorded.alpha - alpha).abs() < 1e-3]


def _times(wide: pd.DataFrame, base: str) -> list[float]:
    """Return how many times as fast as the row `base` of its seed every run is; NaN without it."""
    seconds = wide[wide.method == base].set_index(["data", "seed"]).seconds
    keys = pd.MultiIndex.from_frame(wide[["data", "seed"]])
    return list(seconds.reindex(keys).to_numpy() / wide.seconds.to_numpy())


def _wide(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row a run: data, method, alpha, seed, seconds, accuracy, val_acc."""
    shown = recorded.metric.isin(["seconds", "accuracy", "val_acc"])
    own = recorded[shown].astype({"value": float})
    keys = ["data", "method", "alpha", "seed"]
    order = own[keys].drop_duplicates()
    wide = own.pivot_table(index=keys, columns="metric", values="value", aggfunc="last")
    return order.merge(wide.reset_index(), on=keys)
