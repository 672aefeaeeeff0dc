"""What the methods buy and what not, in plain sentences whose numbers come from the records.

choices     README's table: what I have, what to use, what it buys, what it costs
four        README's sentence on four simulated devices with measured times, and on two real cores
findings    README's five sentences
openings    the first sentence of each section of RESULTS.md
"""

import json
from collections import Counter
from collections.abc import Mapping

import pandas as pd

from alkit.figures import viz
from alkit.records import results
from alkit.records.comparisons import Gap, of_seeds
from studies.all_methods import tables as axis_tables
from studies.common.study import TUNING_SEED, Named
from studies.delayed import accuracy_study as delayed_study
from studies.delayed import characters_study
from studies.dtp import tables as dtp_tables
from studies.elastic import ablation as elastic_study
from studies.elastic import memory as elastic_memory
from studies.ladder import tables as ladder_tables

LOCAL = " - bp"  # contrasts of the best local loss
CODES = "detached - fixed_codes"
COUPLED = "coupled - cosine"


def choices() -> pd.DataFrame:
    """Return a row per kind of reader."""
    few, many = _lost()
    on_two, on_both = _race()
    split, held, settings = _overlap(), _held(), _settings()
    alone, fewer = _freezing_alone()
    rivals = _speeds()
    decided = (_race_rows("bp, 2 threads").lowest > 1).sum()
    codes, count = _counted(settings, CODES), len({key[:2] for key in settings})
    rows = [
        (
            "several devices, exact gradients wanted",
            "`1f1b`",
            f"{_range(rivals['1f1b'] / rivals.bp, 1)} times as fast as one core, on two",
            "idle devices at both ends of every batch; backprop's operators on both cores:"
            f" {_range(rivals['bp, 2 threads'] / rivals.bp, 1)} times",
            "03_speed",
        ),
        (
            "several devices, old weights bearable",
            "`pipedream`",
            f"{_delayed_times('pipedream'):.1f} times as fast as one core, on two",
            f"{few.points:.1f} points with {few.modules} modules{_undecided(few)},"
            f" {many.points:.1f} with {many.modules} (ResNet-20)",
            "32_resnet_accuracy",
        ),
        (
            "layers that may train alone",
            "`local_pipeline`, `al_pipeline`",
            f"AL: {_range(on_two)} times as fast with a second worker; {_range(on_both)} times"
            f" backprop on both cores, always above 1 on {decided} of {len(on_both)} nets",
            "AL's learned label codes, read by the nearest code, lose to fixed ones"
            f' (`rule="fixed_codes"`) in {codes["behind"]} of {count} settings',
            "03_speed",
        ),
        (
            "a pretrained transformer to fine-tune",
            "freeze and store features",
            f"{_range(alone, 1)} times as fast as data parallel",
            f"data parallel for fewer epochs is {_range(fewer, 1)} times as fast, its accuracy"
            f" above by {_fewer_epochs()} points",
            "43_results",
        ),
        (
            "the same, too large for one device",
            "`elastic`",
            f"{held.elastic:.1f} MB per process, as `1f1b`; data parallel {held.ddp:.1f}, with"
            f" checkpoints {held.ddp_checkpoint:.1f}",
            "slower than freezing without a pipeline",
            "45_memory_budget",
        ),
        (
            "a weak device and a server",
            "`pipelearn`",
            f"iterations {split[0]:.1f} to {split[1]:.1f} times as fast as without overlap",
            f"fastest in {_percent(_places())} of simulated device and link speeds, by network;"
            f" federated learning {_federated()} times as fast on two links"
            f" ({_link('21_pipelearn_run')})",
            "23_break_even",
        ),
        (
            "research on credit assignment",
            "`dtp`",
            "no transport of weights",
            f"{_target_time()} times backprop's time; in short training {-_short():.0f} points",
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
    local, coupled = _counted(settings, LOCAL), _counted(settings, COUPLED)
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
        f" fixed ones in {codes['ahead']} of {count} and lose in {codes['behind']}. Trained with"
        f" gradients from the inputs they beat cosine heads in {coupled['ahead']} and lose in"
        f" {coupled['behind']}.{_reading()}"
        " [Accuracy](RESULTS.md#associated-learning)",
        "**Old weights cost more the deeper the pipeline.** PipeDream loses"
        f" {few.points:.1f} points on a ResNet-20 with {few.modules} modules{_undecided(few)} and "
        f"{many.points:.1f} with {many.modules}. [Delayed gradients](RESULTS.md#delayed-gradients)",
        f"**Freezing pays more without a pipeline** where the model fits one device:"
        f" {_range(_freezing_alone()[0], 1)} times data parallel training against"
        f" {_range(_rivals('elastic'), 1)} for PipeTransformer's four switches."
        " [Elastic training](RESULTS.md#elastic-training)",
        "**Target propagation buys no speed.** It takes"
        f" {_target_time()} times backprop's time. On CIFAR-10 its accuracy {_beside(dtp)}"
        f" after {_epochs('52_training', 'cifar')} epochs, and is {-_short():.0f} points behind"
        f" after {_epochs('00_all_methods', 'cpu')} (another network)."
        " [Target propagation](RESULTS.md#target-propagation)",
    ]


def four() -> str:
    """Return a step's time as a share of backprop's, by data set: simulated, and measured."""
    names = ("1f1b", "pipedream", "al_pipeline")
    rows = results.load("00_all_methods")
    said = []
    for metric, how in (("clock_step_ms", "Four simulated devices"), ("step_s", "Two real cores")):
        shares = []
        for data, part in rows.groupby("data"):
            step = axis_tables.facts(part)[metric]
            each = [f"{axis_tables.label(name)} {step[name] / step.bp:.2f}" for name in names]
            shares.append(f"{', '.join(each)} ({viz.proper_name(str(data))})")
        said.append(f"{how}: {'; '.join(shares)}.")
    return " ".join(said)


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
            f"With {_overlap()[2]:.0f} micro-batches an iteration of split learning is"
            f" {_overlap()[0]:.2f} to {_overlap()[1]:.2f} times as fast as with one, on two links"
            " and at two cuts. Of the device and link speeds that were simulated, PipeLearn is the"
            f" fastest choice in {_percent(_places())}, by network; elsewhere one trains on the"
            f" server or does not split. On the measured links federated learning was"
            f" {_federated()} times as fast."
        ),
        "elastic": _elastic_words(),
        "dtp": (
            f"DTP with learned feedback takes {_target_time()} times backprop's time, by data set"
            " and number of epochs (medians of runs that followed each other)."
            f" {' '.join(_target_words())}"
        ),
    }


def _all_methods() -> str:
    rows = results.load("00_all_methods", "cpu")
    frame = axis_tables.accuracies(rows)
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
        "AL's codes trained with them, against cosine heads": COUPLED,
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
    left, ours = (_counted(gaps, f"{codes}_head - bp") for codes in ("coupled", "detached"))
    return (
        " Read by a head instead of the nearest code, those gain in"
        f" {gained['ahead']} of the {gained.total()} settings, and are ahead of backprop"
        f" in {left['ahead'] or 'none'}, behind in {left['behind'] or 'none'}; AL as `fit` trains"
        f" it is ahead in {ours['ahead'] or 'none'}, behind in {ours['behind'] or 'none'}."
    )


def _counted(gaps: Named, name: str) -> Counter[str]:
    """Return how often each verdict fell on a contrast."""
    own = [pair for key, pair in gaps.items() if key[2].endswith(name)]
    return Counter(ladder_tables.STUDY.verdict(*pair) for pair in own)


def _race() -> tuple[pd.Series, pd.Series]:
    """Return how many times as fast two free workers are as one, and as backprop on both cores."""
    return _race_rows("al").value, _race_rows("bp, 2 threads").value


def _race_rows(over: str) -> pd.DataFrame:
    """Return how many times as fast free workers are as a rival, a row per network."""
    rows = results.load("03_speed", "cpu")
    own = rows[(rows.metric == "pipeline_over") & (rows.over == over)]
    return own.astype({"value": float, "lowest": float})


def _speeds() -> pd.DataFrame:
    """Return samples a second, a row per network and a column per contender."""
    rows = results.load("03_speed", "cpu")
    own = rows[rows.metric == "samples_s"].astype({"value": float})
    return own.pivot(index="model", columns="contender", values="value")


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
    rows = results.load("36_language_model", "cpu")
    gaps, back = characters_study.contrast_gaps(rows), characters_study.recovered(rows)
    costs = [found.points for (*_, name), (found, _) in gaps.items() if name == "pipedream - seq"]
    if not costs:
        return ""
    return (
        f", and a character model {min(costs):.2f} to {max(costs):.2f} nats in"
        f" {len(costs)} settings; predicted weights give back"
        f" {_percent(back[back.method == 'pipedream, predict']['given back, mean'])} of that"
    )


def _overlap() -> tuple[float, float, float]:
    """Return how many times as fast an iteration is with the most micro-batches; and how many."""
    rows = results.load("21_pipelearn_run", "cpu")
    own = rows[rows.metric == "times_as_fast"].astype({"value": float})
    most = own[own.micro == own.micro.max()].value
    return most.min(), most.max(), own.micro.max()


def _places() -> pd.Series:
    """Return the share of simulated devices and links where PipeLearn is fastest, by network."""
    rows = results.load("23_break_even", "cpu").astype({"value": float})
    wide = rows.pivot(index=["model", "slower", "mbit"], columns="method", values="value")
    return (wide.idxmin(axis=1) == "pipelearn").groupby("model").mean()


def _federated() -> str:
    """Return how many times as fast federated learning is as PipeLearn, over measured links."""
    rows = results.load("21_pipelearn_run", "cpu")
    own = rows[rows.metric == "epoch_s"].astype({"value": float})
    wide = own.pivot(index="link", columns="method", values="value")
    return _range(wide.pipelearn / wide.fed, 1)


def _rivals(method: str, column: str = "against ddp") -> pd.Series:
    """Return a column of a method's rows in the comparison of 43, by data set."""
    kept = [results.load("43_results", preset) for preset in ("rivals", "rivals_sst2")]
    return elastic_study.ablation(pd.concat(kept)).xs(method, level="method")[column]


def _freezing_alone() -> tuple[pd.Series, pd.Series]:
    """Return by data set how many times as fast as data parallel training freezing without a
    pipeline is, and fewer epochs of data parallel training are.
    """
    alone = [_rivals(name) for name in ("ddp_freeze_cache", "one_freeze_cache")]
    return pd.concat(alone, axis=1).max(axis=1), _rivals("ddp_fewer")


def _fewer_epochs() -> str:
    """Return the points of fewer epochs of data parallel training above freezing, by data set."""
    said = []
    for preset in ("rivals", "rivals_sst2"):
        rows = results.load("43_results", preset)
        own = rows[rows.metric == "accuracy"].astype({"value": float})
        wide = own.pivot(index="seed", columns="method", values="value")
        found = of_seeds((wide.ddp_fewer - wide.one_freeze_cache).dropna())
        sure = "" if found.decided else ", undecided"
        said.append(f"{found.points:.1f} ({viz.proper_name(str(own.data.iloc[0]))}{sure})")
    return " and ".join(said)


def _elastic_words() -> str:
    low, high = _rivals("elastic", "low").min(), _rivals("elastic", "high").max()
    seeds = _rivals("elastic", "n").min()
    rows = results.load("45_memory_budget", "cpu")
    budget = float(rows[rows.metric == "budget"].value.iloc[0]) / elastic_memory.MB
    most = _held()
    return (
        f"Elastic training fine-tunes {_range(_rivals('elastic'), 1)} times as fast as data"
        f" parallel training ({low:.2f} to {high:.2f} over {seeds:.0f} seeds on two sets) where the"
        " model fits a device; the same freezing without a pipeline is"
        f" {_range(_freezing_alone()[0], 1)} times as fast."
        f" Where a process may hold {budget:.1f} MB, elastic training takes {most.elastic:.1f},"
        f" data parallel training {most.ddp:.1f}, with checkpoints {most.ddp_checkpoint:.1f}."
    )


def _held() -> pd.Series:
    """Return the megabytes that the fullest process holds, by method."""
    rows = results.load("45_memory_budget", "cpu")
    return elastic_memory.table(rows).total.groupby("method").max()


def _target_time() -> str:
    """Return how many times backprop's time DTP takes, over presets and data sets."""
    rows = pd.concat([results.load("52_training", preset) for preset in ("cifar", "cpu")])
    spent = rows[(rows.metric == "train_s") & (rows.seed != TUNING_SEED)].astype({"value": float})
    medians = spent.groupby(["preset", "data", "method"]).value.median().unstack()
    return _range(medians.dtp / medians.bp, 0)


def _short() -> float:
    """Return DTP's points against backprop on notebook 00's network."""
    rows = results.load("00_all_methods", "cpu")
    return float(axis_tables.accuracies(rows).against_bp.dtp)


def _targets() -> dict[str, tuple[Gap, float]]:
    gaps = dtp_tables.contrast_gaps(results.load("52_training", "cifar"))
    return {name: pair for (*_, name), pair in gaps.items()}


def _target_words() -> list[str]:
    """Return what DTP is beside backprop and direct feedback alignment, with intervals."""
    found = _targets()
    pairs = {"dtp - bp": "backprop", "dtp - dfa": viz.label("dfa")}
    return [
        f"Its accuracy minus {name}'s, {_epochs('52_training', 'cifar')} epochs on CIFAR-10:"
        f" {found[key][0]} points, {dtp_tables.STUDY.verdict(*found[key])}."
        for key, name in pairs.items()
    ]


def _beside(pair: tuple[Gap, float]) -> str:
    words = {"ahead": "is ahead of", "behind": "is behind", "equal": "equals"}
    return (
        f"{words.get(dtp_tables.STUDY.verdict(*pair), 'cannot be distinguished from')} backprop's"
    )


def _epochs(notebook: str, preset: str) -> int:
    """Return how many epochs a notebook's committed runs took."""
    (epochs,) = {json.loads(each)["epochs"] for each in results.load(notebook, preset).parameters}
    return int(epochs)


def _range(values: pd.Series, digits: int = 2) -> str:
    return f"{values.min():.{digits}f} to {values.max():.{digits}f}"


def _percent(shares: pd.Series) -> str:
    return f"{100 * shares.min():.0f} to {100 * shares.max():.0f} %"


def _link(notebook: str) -> str:
    return f"[{notebook[:2]}](notebooks/{notebook}.ipynb)"
