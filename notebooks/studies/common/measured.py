"""What the sentences of `findings` are made of: numbers from the records, by what they answer."""

import json
from collections import Counter

import pandas as pd

from alkit.records import results
from alkit.records.comparisons import Gap
from studies.all_methods import tables as axis_tables
from studies.common.study import TUNING_SEED, Named
from studies.delayed import accuracy_study as delayed_study
from studies.dtp import tables as dtp_tables
from studies.elastic import ablation as elastic_study
from studies.elastic import memory as elastic_memory
from studies.ladder import tables as ladder_tables


def settings() -> Named:
    """Return the contrasts of all sets of 06 and of all depths of 08."""
    gaps = ladder_tables.contrast_gaps(results.load("06_label_ladder", "cpu"))
    return gaps | ladder_tables.contrast_gaps(results.load("08_depth", "cpu"))


def counted(gaps: Named, name: str) -> Counter[str]:
    """Return how often each verdict fell on a contrast."""
    own = [pair for key, pair in gaps.items() if key[2].endswith(name)]
    return Counter(ladder_tables.STUDY.verdict(*pair) for pair in own)


def race() -> tuple[pd.Series, pd.Series]:
    """Return how many times as fast two free workers are as one, and as backprop on both cores."""
    return race_rows("al").value, race_rows("bp, 2 threads").value


def race_rows(over: str) -> pd.DataFrame:
    """Return how many times as fast free workers are as a rival, a row per network."""
    rows = results.load("03_speed", "cpu")
    own = rows[(rows.metric == "pipeline_over") & (rows.over == over)]
    return own.astype({"value": float, "lowest": float})


def speeds() -> pd.DataFrame:
    """Return samples per second, a row per network and a column per contender."""
    rows = results.load("03_speed", "cpu")
    own = rows[rows.metric == "samples_s"].astype({"value": float})
    return own.pivot(index="model", columns="contender", values="value")


def delayed_times(method: str) -> float:
    """Return how many times as fast as sequential training a method is on two processes."""
    rows = results.load("33_time_memory", "cpu")
    seconds = rows[rows.metric == "batch_s"].set_index("method").value.astype(float)
    return seconds["seq"] / seconds[method]


def lost() -> tuple[pd.Series, pd.Series]:
    """Return PipeDream's points behind sequential training, with fewest and most modules."""
    gaps = delayed_study.gaps(results.load("32_resnet_accuracy", "cpu"))
    own = gaps[gaps.method == "pipedream"].sort_values("modules")
    return own.iloc[0], own.iloc[-1]


def overlap() -> tuple[float, float, float]:
    """Return how many times as fast an iteration is with the most micro-batches; and how many."""
    rows = results.load("21_pipelearn_run", "cpu")
    own = rows[rows.metric == "times_as_fast"].astype({"value": float})
    most = own[own.micro == own.micro.max()].value
    return most.min(), most.max(), own.micro.max()


def places() -> pd.Series:
    """Return the share of simulated devices and links where PipeLearn is fastest, by network."""
    rows = results.load("23_break_even", "cpu").astype({"value": float})
    wide = rows.pivot(index=["model", "slower", "mbit"], columns="method", values="value")
    return (wide.idxmin(axis=1) == "pipelearn").groupby("model").mean()


def federated() -> pd.Series:
    """Return how many times as fast federated learning is as PipeLearn, over measured links."""
    rows = results.load("21_pipelearn_run", "cpu")
    own = rows[rows.metric == "epoch_s"].astype({"value": float})
    wide = own.pivot(index="link", columns="method", values="value")
    return wide.pipelearn / wide.fed


def rivals(method: str, column: str = "against ddp") -> pd.Series:
    """Return a column of a method's rows in the comparison of 43, by data set."""
    kept = [results.load("43_results", preset) for preset in ("rivals", "rivals_sst2")]
    return elastic_study.ablation(pd.concat(kept)).xs(method, level="method")[column]


def freezing_alone() -> tuple[pd.Series, pd.Series]:
    """Return by data set how many times as fast as data parallel training freezing without a
    pipeline is, and fewer epochs of data parallel training are.
    """
    alone = [rivals(name) for name in ("ddp_freeze_cache", "one_freeze_cache")]
    return pd.concat(alone, axis=1).max(axis=1), rivals("ddp_fewer")


def held() -> pd.Series:
    """Return the megabytes that the fullest process holds, by method."""
    rows = results.load("45_memory_budget", "cpu")
    return elastic_memory.table(rows).total.groupby("method").max()


def target_times() -> pd.Series:
    """Return how many times backprop's time DTP takes, over presets and data sets."""
    rows = pd.concat([results.load("52_training", preset) for preset in ("cifar", "cpu")])
    spent = rows[(rows.metric == "train_s") & (rows.seed != TUNING_SEED)].astype({"value": float})
    medians = spent.groupby(["preset", "data", "method"]).value.median().unstack()
    return medians.dtp / medians.bp


def short() -> pd.Series:
    """Return DTP's points against backprop on notebook 00's network: against_bp, low, high."""
    return axis_tables.accuracies(results.load("00_all_methods", "cifar")).loc["dtp"]


def targets() -> dict[str, tuple[Gap, float]]:
    """Return target propagation's contrasts on CIFAR-10: gap and adjusted p, by name."""
    gaps = dtp_tables.contrast_gaps(results.load("52_training", "cifar"))
    return {name: pair for (*_, name), pair in gaps.items()}


def epochs(notebook: str, preset: str) -> int:
    """Return how many epochs a notebook's committed runs took."""
    (epochs,) = {json.loads(each)["epochs"] for each in results.load(notebook, preset).parameters}
    return int(epochs)
