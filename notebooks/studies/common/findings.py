"""What the methods buy and what not, in plain sentences whose numbers come from the records.

choices     README's table: what I have, what to use, what it buys, what it costs
four        README's sentence on four simulated devices with measured times
findings    README's five sentences
openings    the first sentence of each section of RESULTS.md
"""

from collections import Counter
from collections.abc import Mapping

import pandas as pd

from alkit.figures import viz
from alkit.records import results
from alkit.records.comparisons import Gap
from studies.all_methods import tables as axis_tables
from studies.common.study import TUNING_SEED, Named
from studies.delayed import accuracy_study as delayed_study
from studies.delayed import characters_study
from studies.dtp import tables as dtp_tables
from studies.elastic import ablation as elastic_study
from studies.elastic import memory as elastic_memory
from studies.ladder import tables as ladder_tables

__all__ = ["choices", "findings", "four", "openings"]

LOCAL = " - bp"  # contrasts of the best local loss
CODES = "detached - fixed_codes"
SETS = {"cifar10": "CIFAR-10"}


def choices() -> pd.DataFrame:
    """Return a row per kind of reader."""
    few, many = _lost()
    on_two, on_both = _race()
    split, alone, held = _overlap(), _without_pipeline(), _held()
    settings = _settings()
    codes, count = _counted(settings, CODES), len({key[:2] for key in settings})
    rows = [
        (
            "several devices, exact gradients wanted",
            "`1f1b`",
            f"{_delayed_times('1f1b'):.1f} times as fast on two processes (torch's own)",
            "idle devices at both ends of every batch",
            "33_time_memory",
        ),
        (
            "several devices, old weights bearable",
            "`pipedream`",
            f"{_delayed_times('pipedream'):.1f} times as fast on two processes",
            f"{few.points:.1f} points with {few.modules} modules{_undecided(few)},"
            f" {many.points:.1f} with {many.modules} (ResNet-20)",
            "32_resnet_accuracy",
        ),
        (
            "layers that may train alone",
            "`al_pipeline`",
            f"{_range(on_two)} times as fast with a second worker; {_range(on_both)} times as fast"
            " as backprop on both cores",
            f"learned label codes lose to frozen ones (`local_pipeline`) in {codes['behind']} of"
            f" {count} settings",
            "03_speed",
        ),
        (
            "a pretrained transformer to fine-tune",
            "freeze and store features",
            f"{alone:.1f} times as fast as data parallel",
            "accuracy undecided over three seeds",
            "43_results",
        ),
        (
            "the same, too large for one device",
            "`elastic`",
            f"{held.elastic:.1f} MB per process where data parallel takes {held.ddp:.1f}",
            "slower than freezing without a pipeline",
            "45_memory_budget",
        ),
        (
            "a weak device and a server",
            "`pipelearn`",
            f"iterations {split[0]:.1f} to {split[1]:.1f} times as fast as without overlap",
            f"fastest in {100 * _places():.0f} % of simulated device and link speeds",
            "23_break_even",
        ),
        (
            "research on credit assignment",
            "`dtp`",
            "no transport of weights",
            f"{_target_time():.0f} times backprop's time; in short training {-_short():.0f} points",
            "52_training",
        ),
    ]
    columns = ["I have", "use", "what it buys (measured)", "what it costs", "notebook"]
    rows = [(*row[:-1], _link(row[-1])) for row in rows]
    return pd.DataFrame(rows, columns=columns)


def findings() -> list[str]:
    """Return five plain sentences, each with a link to its section of RESULTS.md."""
    on_two, on_both = _race()
    settings = _settings()
    codes = _counted(settings, CODES)
    local = _counted(settings, LOCAL)
    few, many = _lost()
    dtp = _targets()["dtp - bp"]
    count = len({key[:2] for key in settings})
    return [
        "**The AL pipeline uses a second worker, and so does backprop.** On two workers it is"
        f" {_range(on_two)} times as fast as on one, and {_range(on_both)} times as fast as"
        " backprop that gives both cores to each operator. [Speed](RESULTS.md#associated-learning)",
        "**Local losses can match backprop; AL's learned label codes add little.** The local loss"
        f" that is best on validation matches or beats backprop in"
        f" {local['ahead'] + local['equal']} of {count} settings, loses in"
        f" {local['behind'] or 'none'}; {local['undecided']} are undecided. AL's label codes beat"
        f" fixed ones in {codes['ahead']} of {count} and lose in {codes['behind']}; the others are"
        f" equal or undecided.{_reading()}"
        " [Accuracy](RESULTS.md#associated-learning)",
        "**Old weights cost more the deeper the pipeline.** PipeDream loses"
        f" {few.points:.1f} points on a ResNet-20 with {few.modules} modules{_undecided(few)} and "
        f"{many.points:.1f} with {many.modules}. [Delayed gradients](RESULTS.md#delayed-gradients)",
        f"**Freezing pays more without a pipeline** where the model fits one device:"
        f" {_without_pipeline():.1f} times data parallel training against {_elastic():.1f} for"
        " PipeTransformer's four switches. [Elastic training](RESULTS.md#elastic-training)",
        "**Target propagation buys no speed.** It takes"
        f" {_target_time():.0f} times backprop's time. On CIFAR-10 its accuracy {_beside(dtp)}"
        f" after eight epochs, and is {-_short():.0f} points behind after five (another network)."
        " [Target propagation](RESULTS.md#target-propagation)",
    ]


def four() -> str:
    """Return what four simulated devices need for a step, in parts of backprop's, by data set."""
    names = ("1f1b", "pipedream", "al_pipeline")
    rows = results.load("00_all_methods")
    own = rows[rows.metric == "clock_step_ms"].astype({"value": float})
    told = []
    for data, part in own.groupby("data"):
        step = part.set_index("method").value
        each = [f"{axis_tables.label(name)} {step[name] / step.bp:.2f}" for name in names]
        told.append(f"{SETS.get(str(data), data)}: {', '.join(each)}.")
    return " ".join(told)


def openings() -> dict[str, str]:
    """Return by section of RESULTS.md what it found, with intervals over seeds."""
    few, many = _lost()
    return {
        "all": _all_methods(),
        "al": _associated(),
        "delayed": (
            f"On two processes PipeDream is {_delayed_times('pipedream'):.2f} times as fast as"
            f" sequential training. Its old weights cost a small ResNet-20 {_gap(few)} points with"
            f" {few.modules} modules and {_gap(many)} with {many.modules}{_characters()}."
        ),
        "split": (
            f"With 20 micro-batches an iteration of split learning is {_overlap()[0]:.2f} to"
            f" {_overlap()[1]:.2f} times as fast as with one, on two links and at two cuts. Of the"
            f" device and link speeds that were simulated, PipeLearn is the fastest choice in"
            f" {_places():.0%}; elsewhere one trains on the server or does not split."
        ),
        "elastic": _elastic_words(),
        "dtp": (
            f"DTP with learned feedback takes {_target_time():.0f} times backprop's time."
            f" {'; '.join(_target_words())}."
        ),
    }


def _all_methods() -> str:
    rows = results.load("00_all_methods", "cpu")
    frame = axis_tables.over_seeds(
        rows[rows.metric == "accuracy"].assign(
            name=lambda own: own.method, accuracy=lambda own: own.value.astype(float)
        )[["name", "seed", "accuracy"]]
    )
    rest = frame.drop("bp")
    behind, ahead = (
        ", ".join(map(axis_tables.label, own.index)) or "none"
        for own in (rest[rest.high < 0], rest[rest.low > 0])
    )
    return (
        f"One network of four blocks on CIFAR-10, {frame.n.min():.0f} seeds: behind backprop by"
        f" more than the interval is {behind}; ahead by more than that: {ahead}. Each method had an"
        " optimiser of its own in this run, so a point or two may be the optimiser's."
    )


def _associated() -> str:
    on_two, on_both = _race()
    settings = _settings()
    asked = {
        "AL's codes trained without gradients from the inputs, against fixed codes": (CODES),
        "AL's codes trained with them, against cosine heads": "coupled - cosine",
        "the local loss that is best on validation, against backprop": LOCAL,
    }
    told = [f"{words}: {_said(_counted(settings, name))}" for words, name in asked.items()]
    return (
        f"On two workers the AL pipeline is {_range(on_two)} times as fast as on one, and"
        f" {_range(on_both)} times as fast as backprop whose operators use both cores. Accuracy in"
        f" {len({key[:2] for key in settings})} settings, six seeds each: {'; '.join(told)}."
    )


def _said(counts: Mapping[str, int]) -> str:
    words = {
        "ahead": "ahead in",
        "equal": "equal in",
        "undecided": "undecided in",
        "behind": "behind in",
    }
    return ", ".join(f"{words[each]} {counts[each]}" for each in words if counts[each])


def _settings() -> Named:
    """Return the contrasts of all sets of 06 and of all depths of 08."""
    gaps = ladder_tables.contrast_gaps(results.load("06_label_ladder", "cpu"))
    return gaps | ladder_tables.contrast_gaps(results.load("08_depth", "cpu"))


def _reading() -> str:
    """Say what codes learned from inputs gain where a head reads the features."""
    gaps: Named = {}
    for name in ("06_label_ladder", "08_depth"):
        rows = results.load(name, "cpu")
        gaps |= ladder_tables.contrast_gaps(rows, ladder_tables.READING)
    gaps = {key: pair for key, pair in gaps.items() if pair[0].seeds}
    gained = _counted(gaps, "coupled_head - coupled")
    left = _counted(gaps, "coupled_head - bp")
    return (
        " Read by a head instead of the nearest code, codes learned from inputs gain in"
        f" {gained['ahead']} of the {gained.total()} settings that ran; against backprop they are"
        f" then ahead in {left['ahead'] or 'none'} and behind in {left['behind'] or 'none'}."
    )


def _counted(gaps: Named, name: str) -> Counter[str]:
    """Return how often each verdict fell on a contrast."""
    own = [pair for key, pair in gaps.items() if key[2].endswith(name)]
    return Counter(ladder_tables.STUDY.verdict(*pair) for pair in own)


def _race() -> tuple[pd.Series, pd.Series]:
    """Return how many times as fast two free workers are as one, and as backprop on both cores."""
    rows = results.load("03_speed", "cpu")
    ratios = rows[rows.metric == "pipeline_over"].astype({"value": float}).set_index("over").value
    return ratios["al"], ratios["bp, 2 threads"]


def _delayed_times(method: str) -> float:
    """Return how many times as fast as sequential training a method is on two processes."""
    rows = results.load("33_time_memory", "cpu")
    seconds = rows[rows.metric == "batch_s"].set_index("method").value.astype(float)
    return seconds["seq"] / seconds[method]


def _lost() -> tuple[pd.Series, pd.Series]:
    """Return PipeDream's points behind sequential training, with fewest and most modules."""
    lost = delayed_study.gaps(results.load("32_resnet_accuracy", "cpu"))
    own = lost[lost.method == "pipedream"].sort_values("modules")
    return own.iloc[0], own.iloc[-1]


def _undecided(row: pd.Series) -> str:
    return " (undecided over five seeds)" if row.low < 0 < row.high else ""


def _gap(row: pd.Series) -> str:
    return str(Gap(*row[list(Gap._fields)]))


def _characters() -> str:
    """Return what PipeDream's old weights cost the character model, over all settings that ran."""
    gaps = characters_study.contrast_gaps(results.load("36_language_model", "cpu"))
    costs = [found.points for (*_, name), (found, _) in gaps.items() if name == "pipedream - seq"]
    if not costs:
        return ""
    return (
        f", and a character model {min(costs):.2f} to {max(costs):.2f} nats in"
        f" {len(costs)} settings"
    )


def _overlap() -> tuple[float, float]:
    """Return how many times as fast an iteration is with the most micro-batches, over all links."""
    rows = results.load("21_pipelearn_run", "cpu")
    own = rows[rows.metric == "times_as_fast"].astype({"value": float})
    own = own[own.micro == own.micro.max()].value
    return own.min(), own.max()


def _places() -> float:
    """Return the share of simulated devices and links where PipeLearn is fastest."""
    rows = results.load("23_break_even", "cpu").astype({"value": float})
    wide = rows.pivot(index=["model", "slower", "mbit"], columns="method", values="value")
    return float((wide.idxmin(axis=1) == "pipelearn").mean())


def _against_data_parallel() -> pd.DataFrame:
    table = elastic_study.ablation(results.load("43_results", "rivals"))
    return table.loc[table.index[0][0]]


def _elastic() -> float:
    return float(_against_data_parallel()["against ddp"]["elastic"])


def _without_pipeline() -> float:
    times = _against_data_parallel()["against ddp"]
    return float(times[["ddp_freeze_cache", "one_freeze_cache"]].max())


def _elastic_words() -> str:
    ours = _against_data_parallel().loc["elastic"]
    rows = results.load("45_memory_budget", "cpu")
    budget = float(rows[rows.metric == "budget"].value.iloc[0]) / elastic_memory.MB
    most = _held()
    return (
        f"Elastic training fine-tunes {_elastic():.1f} times as fast as data parallel training"
        f" ({ours.low:.2f} to {ours.high:.2f} over {ours.n:.0f} seeds) where the model fits a"
        f" device; the same freezing without a pipeline is {_without_pipeline():.1f} times as fast."
        f" Where a process may hold {budget:.1f} MB, elastic training takes {most.elastic:.1f},"
        f" data parallel training {most.ddp:.1f}, with checkpoints {most.ddp_checkpoint:.1f}."
    )


def _held() -> pd.Series:
    """Return the megabytes that the fullest process holds, by method."""
    rows = results.load("45_memory_budget", "cpu")
    return elastic_memory.table(rows).total.groupby("method").max()


def _target_time() -> float:
    rows = results.load("52_training", "cifar")
    spent = rows[(rows.metric == "train_s") & (rows.seed != TUNING_SEED)].astype({"value": float})
    median = spent.groupby("method").value.median()
    return float(median.dtp / median.bp)


def _short() -> float:
    """Return DTP's points against backprop on notebook 00's network, after five epochs."""
    rows = results.load("00_all_methods", "cpu")
    own = rows[rows.metric == "accuracy"].astype({"value": float})
    wide = own.pivot(index="seed", columns="method", values="value")
    return float((wide.dtp - wide.bp).mean())


def _targets() -> dict[str, tuple[Gap, float]]:
    gaps = dtp_tables.contrast_gaps(results.load("52_training", "cifar"))
    return {name: pair for (*_, name), pair in gaps.items()}


def _target_words() -> list[str]:
    """Return what DTP is beside backprop and direct feedback alignment, with intervals."""
    found = _targets()
    pairs = {"dtp - bp": "backprop", "dtp - dfa": viz.label("dfa")}
    return [
        f"Accuracy minus {name}'s: {found[key][0]} points, {dtp_tables.STUDY.verdict(*found[key])}"
        for key, name in pairs.items()
    ]


def _beside(pair: tuple[Gap, float]) -> str:
    words = {"ahead": "is ahead of", "behind": "is behind", "equal": "equals"}
    return (
        f"{words.get(dtp_tables.STUDY.verdict(*pair), 'cannot be distinguished from')} backprop's"
    )


def _range(values: pd.Series) -> str:
    return f"{values.min():.2f} to {values.max():.2f}"


def _link(notebook: str) -> str:
    return f"[{notebook[:2]}](notebooks/{notebook}.ipynb)"
