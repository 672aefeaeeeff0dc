"""Compare step times on a machine that is shared and noisy: interleaved runs, medians, spread."""

from collections.abc import Callable, Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from tqdm.auto import tqdm

from alkit.engine.device import cores as cores
from alkit.engine.trainer import Trained
from alkit.lab import viz
from studies.common.stacks import Stack as Stack

Contenders = Mapping[str, Callable[[], Trained]]


def interleaved(
    contenders: Mapping[str, Callable[[], Trained]],
    repeats: int,
    progress: bool = True,
) -> pd.DataFrame:
    """Run every contender once a round, so that slow minutes of the machine meet all of them.

    The first contender runs once before, untimed: a process's first operators set up their
    libraries.

    Args:
        contenders: by name, a function that makes what it needs, trains, and returns its record.
    Returns:
        A row a run: round, name, seconds (whole, fill and drain included), steady_s (of a batch,
        after fill), samples_s of the whole, bubble.
    """
    rows = []
    next(iter(contenders.values()))()
    bar = tqdm(total=repeats * len(contenders), desc="timing", disable=not progress, leave=False)
    for turn in range(repeats):
        for name, run in contenders.items():
            record = run()
            rows.append(
                {
                    "round": turn,
                    "name": name,
                    "seconds": record.seconds,
                    "steady_s": record.timeline.steady_s,
                    "samples_s": record.samples / record.seconds,
                    "bubble": record.timeline.bubble,
                }
            )
            bar.update()
    bar.close()
    return pd.DataFrame(rows)


def compare(runs: pd.DataFrame, over: str, by: str = "seconds") -> pd.DataFrame:
    """Return medians by name, and how many times faster each is than `over`, round by round.

    Args:
        by: "seconds" of the whole run, or "steady_s" of a batch after fill.
    Returns:
        Columns name, seconds, steady_s, samples_s and bubble (medians), speedup with its lowest and
        highest round, n rounds.
    """
    seconds = runs.pivot(index="round", columns="name", values=by)
    ratios = seconds[[over]].to_numpy() / seconds
    values = ["seconds", "steady_s", "samples_s", "bubble"]
    table = runs.groupby("name", sort=False)[values].median()
    table["speedup"], table["lowest"] = ratios.median(), ratios.min()
    table["highest"], table["n"] = ratios.max(), len(ratios)
    return table.reset_index()


def recorded_rates(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the rates of a loaded record, slowest first: label, method, samples_s, speedup, ..."""
    rates = recorded[recorded["metric"] == "samples_s"]
    made = pd.DataFrame(
        {
            "label": rates["contender"].str.replace("a thread a", "a thread per"),
            "method": rates["contender"].str.split(",").str[0],
            "samples_s": rates["value"].astype(float),
        }
    )
    return made.join(rates[["speedup", "lowest", "highest", "n"]]).sort_values("samples_s")


def draw_rates(rates: pd.DataFrame, where: str) -> Figure:
    """Draw recorded speed-ups over AL with the range of their rounds.

    Args:
        where: the title begins with it, and ends with whether every round of the fastest beats
            every round of the next.
    """
    fig, ax = plt.subplots(figsize=(viz.SINGLE[0] + 1.5, 0.9 + 0.33 * len(rates)))
    spread = [rates.speedup - rates.lowest, rates.highest - rates.speedup]
    colours = list(map(viz.colour, rates.method))
    bars = {"xerr": np.clip(spread, 0, None), "color": colours, "error_kw": {"capsize": 3}}
    ax.barh(range(len(rates)), rates.speedup, **bars)
    ax.set_yticks(range(len(rates)), [viz.label(each) for each in rates.label])
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.set(xlabel="times as fast as AL on one worker, median and range of rounds")
    best, second = rates.iloc[-1], rates.iloc[-2]
    one, other = viz.label(best.label), viz.label(second.label)
    said = f"{one} against {other}: undecided"
    if best.lowest > second.highest:
        said = f"every round of {one} beats {other}"
    ax.set_title(f"{where}: {said}", wrap=True)
    return fig
