"""What the methods buy and what not, in plain sentences whose numbers come from the records.

choices     README's table: what I have, what to use, what it buys, what it costs
four        README's sentence on four simulated devices with measured times, and on two real cores
findings    README's five sentences
openings    the first sentence of each section of RESULTS.md
"""

from collections.abc import Mapping

import pandas as pd

from alkit.figures import viz
from alkit.records import results
from alkit.records.comparisons import Gap, of_seeds
from studies.all_methods import tables as axis_tables
from studies.common import measured
from studies.common.study import Named
from studies.delayed import characters_study
from studies.dtp import tables as dtp_tables
from studies.elastic import memory as elastic_memory
from studies.ladder import tables as ladder_tables

LOCAL = " - bp"  # contrasts of the best local loss
CODES = "detached - fixed_codes"
COUPLED = "coupled - cosine"


def choices() -> pd.DataFrame:
    """Return a row per kind of reader."""
    few, many = measured.lost()
    on_two, on_both = measured.race()
    split, held, settings = measured.overlap(), measured.held(), measured.settings()
    alone, fewer = measured.freezing_alone()
    rivals = measured.speeds()
    decided = (measured.race_rows("bp, 2 threads").lowest > 1).sum()
    codes, count = measured.counted(settings, CODES), len({key[:2] for key in settings})
    lost = f"; in short training it {_short()}" if measured.short().high < 0 else ""
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
            f"{measured.delayed_times('pipedream'):.1f} times as fast as one core, on two",
            f"{few.points:.1f} points with {few.modules} modules{_undecided(few)},"
            f" {many.points:.1f} with {many.modules} (ResNet-20)",
            "32_resnet_accuracy",
        ),
        (
            "layers that may train alone",
            "`local_pipeline`, `al_pipeline`",
            f"AL: {_range(on_two)} times as fast with a second worker; {_range(on_both)} times"
            f" backprop on both cores, in every round on {decided} of {len(on_both)} nets",
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
            f"fastest in {_percent(measured.places())} of simulated device and link speeds, by"
            f" network; federated learning {_range(measured.federated(), 1)} times as fast on two"
            f" links ({_link('21_pipelearn_run')})",
            "23_break_even",
        ),
        (
            "research on credit assignment",
            "`dtp`",
            "no transport of weights",
            f"{_range(measured.target_times(), 0)} times backprop's time{lost}",
            "52_training",
        ),
    ]
    columns = ["I have", "use", "what it buys (measured)", "what it costs", "notebook"]
    rows = [(*row[:-1], _link(row[-1])) for row in rows]
    return pd.DataFrame(rows, columns=columns)


def findings() -> list[str]:
    """Return five plain sentences, each with a link to its section of RESULTS.md."""
    on_two, on_both = measured.race()
    settings = measured.settings()
    codes = measured.counted(settings, CODES)
    local, coupled = measured.counted(settings, LOCAL), measured.counted(settings, COUPLED)
    few, many = measured.lost()
    dtp = measured.targets()["dtp - bp"]
    likewise = "likewise" if _short() == _beside(dtp) else f"it {_short()}"
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
        f" {_range(measured.freezing_alone()[0], 1)} times data parallel training against"
        f" {_range(measured.rivals('elastic'), 1)} for PipeTransformer's four switches."
        " [Elastic training](RESULTS.md#elastic-training)",
        "**Target propagation buys no speed.** It takes"
        f" {_range(measured.target_times(), 0)} times backprop's time. On CIFAR-10 its"
        f" accuracy {_beside(dtp)} after {measured.epochs('52_training', 'cifar')} epochs;"
        f" {likewise} after {measured.epochs('00_all_methods', 'cifar')} of another network."
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
    few, many = measured.lost()
    least, most, micro = measured.overlap()
    return {
        "all": _all_methods(),
        "al": _associated(),
        "delayed": (
            f"On two processes PipeDream is {measured.delayed_times('pipedream'):.2f} times as fast"
            f" as sequential training. Its old weights cost a small ResNet-20 {_gap(few)} points"
            f" with {few.modules} modules and {_gap(many)} with {many.modules}{_characters()}."
        ),
        "split": (
            f"With {micro:.0f} micro-batches an iteration of split learning is"
            f" {least:.2f} to {most:.2f} times as fast as with one, on two links and at two cuts."
            " Of the device and link speeds that were simulated, PipeLearn is the fastest choice in"
            f" {_percent(measured.places())}, by network; elsewhere one trains on the"
            f" server or does not split. On the measured links federated learning was"
            f" {_range(measured.federated(), 1)} times as fast."
        ),
        "elastic": _elastic_words(),
        "dtp": (
            f"DTP with learned feedback takes {_range(measured.target_times(), 0)} times backprop's"
            " time, by data set and number of epochs (medians of runs that followed each other)."
            f" {' '.join(_target_words())}"
        ),
    }


def _all_methods() -> str:
    rows = results.load("00_all_methods", "cifar")
    frame = axis_tables.accuracies(rows)
    rest = frame.drop("bp")
    behind, ahead = (
        ", ".join(map(axis_tables.label, own.index)) or "none"
        for own in (rest[rest.high < 0], rest[rest.low > 0])
    )
    return (
        f"One network of four blocks on CIFAR-10, {frame.n.min():.0f} seeds: behind backprop by"
        f" more than the interval is {behind}; ahead by more than that: {ahead}. All train with"
        " Adam but split learning, which takes SGD alone: its difference is the optimiser's, too."
    )


def _associated() -> str:
    on_two, on_both = measured.race()
    settings = measured.settings()
    asked = {
        "AL's codes trained without gradients from the inputs, against fixed codes": (CODES),
        "AL's codes trained with them, against cosine heads": COUPLED,
        "the local loss that is best on validation, against backprop": LOCAL,
    }
    told = [f"{words}: {_said(measured.counted(settings, name))}" for words, name in asked.items()]
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


def _reading() -> str:
    """Say what codes learned from inputs gain where a head reads the features."""
    gaps: Named = {}
    for name in ("06_label_ladder", "08_depth"):
        rows = results.load(name, "cpu")
        gaps |= ladder_tables.contrast_gaps(rows, ladder_tables.READING)
    gaps = {key: pair for key, pair in gaps.items() if pair[0].seeds}
    gained = measured.counted(gaps, "coupled_head - coupled")
    left, ours = (measured.counted(gaps, f"{codes}_head - bp") for codes in ("coupled", "detached"))
    return (
        " Read by a head instead of the nearest code, those gain in"
        f" {gained['ahead']} of the {gained.total()} settings, and are ahead of backprop"
        f" in {left['ahead'] or 'none'}, behind in {left['behind'] or 'none'}; AL as `fit` trains"
        f" it is ahead in {ours['ahead'] or 'none'}, behind in {ours['behind'] or 'none'}."
    )


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
    low, high = measured.rivals("elastic", "low").min(), measured.rivals("elastic", "high").max()
    seeds = measured.rivals("elastic", "n").min()
    rows = results.load("45_memory_budget", "cpu")
    budget = float(rows[rows.metric == "budget"].value.iloc[0]) / elastic_memory.MB
    most = measured.held()
    return (
        f"Elastic training fine-tunes {_range(measured.rivals('elastic'), 1)} times as fast as data"
        f" parallel training ({low:.2f} to {high:.2f} over {seeds:.0f} seeds on two sets) where the"
        " model fits a device; the same freezing without a pipeline is"
        f" {_range(measured.freezing_alone()[0], 1)} times as fast."
        f" Where a process may hold {budget:.1f} MB, elastic training takes {most.elastic:.1f},"
        f" data parallel training {most.ddp:.1f}, with checkpoints {most.ddp_checkpoint:.1f}."
    )


def _target_words() -> list[str]:
    """Return what DTP is beside backprop and direct feedback alignment, with intervals."""
    found = measured.targets()
    epochs = measured.epochs("52_training", "cifar")
    pairs = {"dtp - bp": "backprop", "dtp - dfa": viz.label("dfa")}
    return [
        f"Its accuracy minus {name}'s, {epochs} epochs on CIFAR-10: {found[key][0]} points,"
        f" {dtp_tables.STUDY.verdict(*found[key])}."
        for key, name in pairs.items()
    ]


def _short() -> str:
    """Return what DTP is beside backprop on notebook 00's network, after few epochs."""
    gap = measured.short()
    if gap.high < 0:
        return f"is {-gap.against_bp:.0f} points behind backprop's"
    if gap.low > 0:
        return f"is {gap.against_bp:.0f} points ahead of backprop's"
    return "cannot be distinguished from backprop's"


def _beside(pair: tuple[Gap, float]) -> str:
    words = {"ahead": "is ahead of", "behind": "is behind", "equal": "equals"}
    return (
        f"{words.get(dtp_tables.STUDY.verdict(*pair), 'cannot be distinguished from')} backprop's"
    )


def _range(values: pd.Series, digits: int = 2) -> str:
    return f"{values.min():.{digits}f} to {values.max():.{digits}f}"


def _percent(shares: pd.Series) -> str:
    return f"{100 * shares.min():.0f} to {100 * shares.max():.0f} %"


def _link(notebook: str) -> str:
    return f"[{notebook[:2]}](notebooks/{notebook}.ipynb)"
