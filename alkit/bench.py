"""Compare step times on a machine that is shared and noisy: interleaved runs, medians, spread."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from alkit.backprop import BPModel
from alkit.clock import simulate
from alkit.convert import to_al, to_bp
from alkit.device import cores
from alkit.layers import one_hot
from alkit.model import ALModel
from alkit.models.transformer import EncoderBlock
from alkit.schedule import al_pipeline
from alkit.timeline import Timeline
from alkit.train import EpochRecord, train_epoch

__all__ = ["Stack", "busy_task_s", "compare", "cores", "interleaved", "recorded_rates"]

Batch = tuple[tuple[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Stack:
    """Equal Transformer blocks and batches of random numbers: what step times are compared on."""

    layers: int = 4
    width: int = 300
    heads: int = 6
    ffn: int = 512
    texts: int = 32
    tokens: int = 60
    batches: int = 20
    dropout: float = 0.1
    seed: int = 0

    def model(self, kind: str = "al") -> ALModel | BPModel:
        """Make the AL model, or with "bp" its BP twin; the same weights every time."""
        torch.manual_seed(self.seed)
        sizes = (self.width, self.heads, self.ffn, self.dropout)
        blocks = [EncoderBlock(*sizes) for _ in range(self.layers)]
        sample, _ = next(self.stream())
        return to_bp(blocks, 4, sample) if kind == "bp" else to_al(blocks, 4, sample, recipe="mse")

    def stream(self) -> Iterator[Batch]:
        """Yield the batches, the same ones every time: ((x_BTD, mask_BT), y one-hot (B, 4))."""
        generator = torch.Generator().manual_seed(self.seed)
        mask_BT = torch.ones(self.texts, self.tokens, dtype=torch.bool)
        y = one_hot(torch.arange(self.texts) % 4, 4)
        for _ in range(self.batches):
            x_BTD = torch.randn(self.texts, self.tokens, self.width, generator=generator)
            yield (x_BTD, mask_BT), y

    def train(self, mode: str, **options: Any) -> EpochRecord:
        """Make a model and train it on all batches; options are those of `train_epoch`.

        Model and batches are made before the clock starts.
        """
        model, batches = self.model("bp" if mode == "bp" else "al"), list(self.stream())
        return train_epoch(model, batches, mode, **options)

    def predict(self, cuts: Sequence[int]) -> EpochRecord:
        """Return what al_pipeline should take, a worker a core: the clock, fed with busy times."""
        schedule = al_pipeline(self.layers, cuts)
        busy_s = busy_task_s(lambda: self.train("al"), schedule.workers)
        timeline = simulate(schedule, busy_s, self.batches)
        samples = self.batches * self.texts
        return EpochRecord(torch.empty(0), timeline, samples, timeline.span_s, tuple(cuts))


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


def recorded_rates(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the rates of a loaded record, slowest first: label, method, samples_s, speedup, ..."""
    rates = recorded[recorded["metric"] == "samples_s"]
    made = pd.DataFrame(
        {
            "label": rates["contender"],
            "method": rates["contender"].str.split(",").str[0],
            "samples_s": rates["value"].astype(float),
        }
    )
    return made.join(rates[["speedup", "lowest", "highest", "n"]]).sort_values("samples_s")


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
