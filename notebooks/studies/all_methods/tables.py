"""What notebook 15 and README show of all methods: intervals over seeds, one table, one picture."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from alkit.lab import viz
from alkit.lab.compare import of_seeds
from alkit.schedule.clock import simulate
from alkit.schedule.task import Task
from alkit.schedule.timeline import Timeline
from studies.all_methods.runs import BLOCKS, ROWS

COLUMNS = ["accuracy", "half", "sd", "n", "against_bp", "low", "high"]


def over_seeds(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Return a row per method: mean accuracy, half its interval, sd, n, points against backprop.

    Intervals are Student's t over seeds, of the differences paired by seed; missing with one seed.

    Args:
        accuracy: columns name, seed, accuracy in percent; of rows alike the first counts, for a
            method's runs may hold a seed that the run of all methods has, too.
    """
    wide = accuracy.drop_duplicates(["name", "seed"]).pivot(
        index="seed", columns="name", values="accuracy"
    )
    rows = {}
    for name in sorted(accuracy.name.unique(), key=[*ROWS].index):
        mean, low, high, *_ = of_seeds(wide[name].dropna())
        row = {"accuracy": mean, "half": (high - low) / 2, "sd": wide[name].std()}
        row["n"] = wide[name].count()
        if name != "bp" and "bp" in wide:
            against = of_seeds((wide[name] - wide.bp).dropna())[:3]
            row |= dict(zip(("against_bp", "low", "high"), against, strict=True))
        rows[name] = row
    return pd.DataFrame(rows).T.reindex(columns=COLUMNS)  # backprop alone has all of them, too


def joined(*tables: pd.DataFrame) -> pd.DataFrame:
    """Put tables with a row a method side by side; removed waits become one column."""
    table = pd.concat([each.loc[tables[0].index] for each in tables], axis=1)
    waits = [column for column in table if column.startswith("waits ")]
    removed = [
        ", ".join(each.removeprefix("waits ") for each in waits if not row[each]) or "none"
        for _, row in table.iterrows()
    ]
    return table.drop(columns=waits).assign(waits_removed=removed)


def unit_clock(name: str, batches: int = 3) -> Timeline:
    """Return a row's picture: forward 1, backward 2, update 1/4, learning 3, target 1/2 a block.

    Features Replay's backward runs the forward once more, but in the last block. Lanes of links,
    which cost nothing here, are left out.
    """
    seconds = {"forward": 1.0, "backward": 2.0, "update": 0.25, "learn": 3.0, "target": 0.5}
    schedule = ROWS[name].schedule()
    parts = 1 + max(micro for _, _, micro in schedule.places)

    def duration(task: Task) -> float:
        blocks = BLOCKS // schedule.stages
        again = name == "fr" and task.kind == "backward" and task.stage < BLOCKS - 1
        share = 1 if task.kind == "update" else parts
        return blocks * (seconds.get(task.kind, 0.0) + again * seconds["forward"]) / share

    found = simulate(schedule, duration, batches)
    shown = [i for i in found.intervals if i.kind != "send"]
    workers = {name: f"worker {at}" for at, name in enumerate(sorted({i.resource for i in shown}))}
    named = [i._replace(resource=workers[i.resource]) for i in shown]
    return Timeline.of(named, list(workers.values()), found.clock)


def picture(names: Sequence[str]) -> Figure:
    """Draw three batches of each row on one axis of time; the title compares AL with backprop."""
    lines = {name: unit_clock(name) for name in names}
    title = "Simulated: three batches on four workers, by method"
    if {"al_pipeline", "bp"} <= lines.keys():
        share = lines["al_pipeline"].span_s / lines["bp"].span_s
        title = f"Simulated, equal blocks: the AL pipeline takes {share:.2f} of backprop's time"
    named = {f"{viz.label(name)}: {line.span_s:g}": line for name, line in lines.items()}
    if "elastic" in lines:
        named = {k.replace("elastic", "elastic, nothing frozen yet"): v for k, v in named.items()}
    figure = viz.gantts(named, title, number="batch")
    figure.set_size_inches(viz.WIDE[0], 9)
    for ax in figure.axes:
        ax.tick_params("y", labelsize=7)
    figure.axes[-1].set_xlabel("time, in forwards of a block; equal blocks, one device per block")
    return figure


def accuracies(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return `over_seeds` of the records of one data set."""
    return over_seeds(by_seed(recorded))


def by_seed(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracies of one data set's records: name, seed, accuracy."""
    own = recorded[recorded.metric == "accuracy"].rename(columns={"method": "name"})
    return own.assign(accuracy=own.value.astype(float))[["name", "seed", "accuracy"]]
