"""Compare step times on a machine that is shared and noisy: interleaved runs, medians, spread."""

from collections.abc import Callable, Mapping

import pandas as pd
from tqdm.auto import tqdm

from alkit.engine.trainer import Trained

Contenders = Mapping[str, Callable[[], Trained]]


def interleaved(contenders: Contenders, repeats: int) -> pd.DataFrame:
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
    bar = tqdm(total=repeats * len(contenders), desc="timing", leave=False)
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


def compare(runs: pd.DataFrame, over: str) -> pd.DataFrame:
    """Return medians by name, and how many times faster each is than `over`, round by round.

    Returns:
        Columns name, seconds, steady_s, samples_s and bubble (medians); speedup of a batch after
        fill, with its lowest and highest round, n rounds.
    """
    steady = runs.pivot(index="round", columns="name", values="steady_s")
    ratios = steady[[over]].to_numpy() / steady
    values = ["seconds", "steady_s", "samples_s", "bubble"]
    table = runs.groupby("name", sort=False)[values].median()
    table["speedup"], table["lowest"] = ratios.median(), ratios.min()
    table["highest"], table["n"] = ratios.max(), len(ratios)
    return table.reset_index()
