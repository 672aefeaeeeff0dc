"""Compare step times on a machine that is shared and noisy: interleaved runs, medians, spread."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
from tqdm.auto import tqdm

from alkit.timeline import Timeline
from alkit.train import EpochRecord

__all__ = ["busy_task_s", "compare", "interleaved"]


def interleaved(
    contenders: Mapping[str, Callable[[], EpochRecord]], repeats: int, progress: bool = True
) -> pd.DataFrame:
    """Run every contender once a round, so that slow minutes of the machine meet all of them.

    The first contender runs once before, untimed: a process's first operators set up their
    libraries.

    Args:
        contenders: by name, a function that makes what it needs, trains, and returns its record.
    Returns:
        A row a run: round, name, seconds (whole, fill and drain included), step_s, samples_s,
        bubble.
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
                    "step_s": record.timeline.step_s,
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
        Columns name, step_s and samples_s (medians), and speedup with its lowest and highest round.
    """
    seconds = runs.pivot(index="round", columns="name", values="seconds")
    ratios = seconds[[over]].to_numpy() / seconds
    table = runs.groupby("name", sort=False)[["seconds", "samples_s", "bubble"]].median()
    table["speedup"], table["lowest"] = ratios.median(), ratios.min()
    table["highest"], table["n"] = ratios.max(), len(ratios)
    return table.reset_index()


def busy_task_s(train: Callable[[], EpochRecord], cores: int = 2) -> dict[tuple[str, int], float]:
    """Return the seconds of each (kind, stage) while the other cores do the same work.

    Neighbours share caches and memory bandwidth, so a block alone on the machine is faster than it
    will ever be in a pipeline.

    Args:
        train: trains a model of its own on one thread, in mode al.
        cores: trainings that run side by side; the first one's medians are returned.
    """
    with ThreadPoolExecutor(cores) as pool:
        records = [future.result() for future in [pool.submit(train) for _ in range(cores)]]
    return _overlapping(records[0].timeline).task_s()


def _overlapping(timeline: Timeline) -> Timeline:
    """Leave out the first and the last batch, when a neighbour may be idle."""
    last = len(timeline.batch_ends_s) - 1
    return timeline.between(1, last - 1) if last >= 2 else timeline
