"""A race over the size of blocks: layers that train alone against backprop, eager and compiled.

    backprop        eager, torch.compile, compile="steps"    one operator thread, or all cores
    local, AL       eager, compile="steps"                   free workers, one a core; for pictures
                                                             also by heads that only pool
    its pipelines   1f1b, gpipe, interleaved_1f1b            free workers or one a core
    ddp             torch's                                  a rank a core

Every contender keeps its model over all rounds, so that compilers have run before the clock starts;
times are of whole runs, fill and drain included.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm.auto import tqdm

import alkit
from alkit.al.backprop import BPModel
from alkit.al.bridges import pool
from alkit.delayed.modules import Pipeline
from alkit.delayed.train import train_epoch as train_pipeline
from alkit.engine.device import cores
from alkit.engine.optimizers import adam
from alkit.engine.run import operator_threads
from alkit.lab import viz
from studies.common.torch_pipelines import data_parallel

CLASSES, LAYERS = 10, 4
Run = Callable[[], None]


@dataclass(frozen=True)
class Size:
    """Four equal blocks and a head, and batches of random numbers.

    Attributes:
        kind: transformer, lstm or conv.
        positions: tokens of a text, or the side of a picture.
        texts: samples per batch.
    """

    kind: str
    width: int
    positions: int
    texts: int = 32
    batches: int = 20

    def blocks(self) -> list[nn.Module]:
        """Make the blocks and the head, with the same weights every time."""
        torch.manual_seed(0)
        return [*(self._block(at) for at in range(LAYERS)), _Head(self.width)]

    def stream(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches, the same ones every time."""
        generator = torch.Generator().manual_seed(0)
        texts = self.texts, self.positions, self.width
        pictures = self.texts, 1, self.positions, self.positions
        for _ in range(self.batches):
            x = torch.randn(pictures if self.kind == "conv" else texts, generator=generator)
            yield x, torch.randint(0, CLASSES, (self.texts,), generator=generator)

    def model(self, kind: str = "bp") -> BPModel:
        """Make backprop's model, whose last block gives scores."""
        sample, _ = next(self.stream())
        return alkit.to_bp(self.blocks(), CLASSES, sample, head=nn.Identity())

    def _block(self, at: int) -> nn.Module:
        width = self.width
        if self.kind == "transformer":
            sizes = width, 2, 2 * width, 0.0
            return nn.TransformerEncoderLayer(*sizes, batch_first=True, norm_first=True)
        if self.kind == "lstm":
            return _Recurrent(width)
        return nn.Sequential(nn.Conv2d(width if at else 1, width, 3, padding=1), nn.ELU())


class _Recurrent(nn.LSTM):
    """An LSTM that hands on its outputs alone."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """(B, T, D) -> (B, T, D)."""
        return super().forward(x)[0]


class _Head(nn.Module):
    """Means over positions, then scores."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) or (B, D, H, W) -> (B, C)."""
        return self.linear(x.mean(1) if x.dim() == 3 else x.mean((2, 3)))


SIZES = {
    "transformer 16": Size("transformer", 16, 8, texts=8, batches=60),
    "transformer 32": Size("transformer", 32, 16, texts=16, batches=60),
    "transformer 64": Size("transformer", 64, 20, batches=40),
    "transformer 128": Size("transformer", 128, 40, batches=20),
    "transformer 256": Size("transformer", 256, 40, batches=10),
    "conv 32": Size("conv", 32, 8, batches=60),
    "conv 64": Size("conv", 64, 16, batches=20),
    "lstm 64": Size("lstm", 64, 20, batches=40),
}


def _plain(size: Size, threads: int, *, compiled: bool = False) -> Run:
    """Return the plain loop of backprop, the simplest thing that a user could write."""
    model, batches = nn.Sequential(*size.blocks()), list(size.stream())
    optimizer = adam(model.parameters(), lr=1e-3)
    if compiled:
        model.compile()

    def run() -> None:
        with operator_threads(threads):
            for x, y in batches:
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    return run


def _steps(size: Size, threads: int) -> Run:
    return partial(
        alkit.train_epoch, size.model(), list(size.stream()), "bp", threads=threads, compile="steps"
    )


def _layers(size: Size, method: str, *, own_pool: Any = None, **options: Any) -> Run:
    make = alkit.to_local if method.startswith("local") else alkit.to_al
    batches = list(size.stream())
    model = make(size.blocks(), CLASSES, batches[0][0], pool=own_pool)
    return partial(alkit.train_epoch, model, batches, method, **options)


def _flushed(size: Size, method: str, micro: int = 4) -> Run:
    cuts = range(1, LAYERS)
    pipeline = Pipeline(size.blocks(), F.cross_entropy, cuts, partial(adam, lr=1e-3))
    options = {"micro": micro, "workers": cores()}
    return partial(train_pipeline, pipeline, list(size.stream()), method, "threads", **options)


def _replicas(size: Size) -> Run:
    return partial(data_parallel, size, ranks=cores())  # type: ignore[arg-type]


CONTENDERS: dict[str, Callable[[Size], Run]] = {
    "bp": lambda size: _plain(size, 1),
    "bp, N threads": lambda size: _plain(size, cores()),
    "bp, compiled": lambda size: _plain(size, 1, compiled=True),
    "bp, compiled, N threads": lambda size: _plain(size, cores(), compiled=True),
    "bp, steps": lambda size: _steps(size, 1),
    "bp, steps, N threads": lambda size: _steps(size, cores()),
    "local": lambda size: _layers(size, "local"),
    "local_pipeline": lambda size: _layers(size, "local_pipeline", workers=cores()),
    "local, steps": lambda size: _layers(size, "local", compile="steps"),
    "local_pipeline, steps": lambda size: _layers(
        size, "local_pipeline", workers=cores(), compile="steps"
    ),
    "al": lambda size: _layers(size, "al"),
    "al_pipeline": lambda size: _layers(size, "al_pipeline", workers=cores()),
    "al_pipeline, steps": lambda size: _layers(
        size, "al_pipeline", workers=cores(), compile="steps"
    ),
    "local_pipeline, steps, pooled heads": lambda size: _layers(
        size, "local_pipeline", own_pool=pool, workers=cores(), compile="steps"
    ),
    "1f1b": lambda size: _flushed(size, "1f1b"),
    "gpipe": lambda size: _flushed(size, "gpipe"),
    "interleaved_1f1b": lambda size: _flushed(size, "interleaved_1f1b"),
    "ddp": _replicas,
}


def race(size: Size, names: Sequence[str], rounds: int) -> pd.DataFrame:
    """Return seconds per batch, fill and drain included: a row a round, a column a contender.

    Whoever starts ranks is timed from when they have started. Heads that pool are the default ones
    where there are no pictures.
    """
    same = [] if size.kind == "conv" else ["local_pipeline, steps, pooled heads"]
    runs = {name: CONTENDERS[name](size) for name in names if name not in same}
    took = []
    bar = tqdm(total=(rounds + 1) * len(runs), desc=f"{size.kind} {size.width}", leave=False)
    for _ in range(rounds + 1):  # in the first, compilers run
        took.append({name: _timed(run) / size.batches for name, run in runs.items()})
        bar.update(len(runs))
    bar.close()
    return pd.DataFrame(took[1:]).rename(columns=lambda name: name.replace("N", str(cores())))


def _timed(run: Run) -> float:
    start = time.perf_counter()
    found = run()
    seconds = time.perf_counter() - start
    return getattr(found, "seconds", seconds)


def backprops(names: Sequence[str]) -> list[str]:
    """Return those of the names that are backprop on one process, each at its best somewhere."""
    return [name for name in names if name.split(",")[0] == "bp"]


def fastest(times: pd.DataFrame, names: Sequence[str]) -> str:
    """Return whose median is the smallest."""
    return min(names, key=lambda name: times[name].median())


def ratios(times: pd.DataFrame, ours: Sequence[str]) -> dict[str, tuple[str, pd.Series]]:
    """Return for each of ours the fastest backprop of one process, and how many times as fast ours
    is, round by round."""
    best = fastest(times, backprops(list(times.columns)))
    return {own: (best, times[best] / times[own]) for own in ours if own in times}


def draw(rows: pd.DataFrame) -> Figure:
    """Draw how many times as fast as the best backprop pipelines of layers are, by block size."""
    own = rows[rows.metric == "over_bp"].astype({"value": float}).sort_values("block_ms")
    fig, ax = plt.subplots()
    lines = [("local_pipeline, steps", "-"), ("local_pipeline", ":"), ("al_pipeline, steps", "--")]
    for contender, dashes in lines:
        found = own[own.contender == contender]
        style = {"color": viz.colour(contender), "ls": dashes, "label": viz.label(contender)}
        for kind, part in found.groupby(found.model.str.split(" ").str[0], sort=False):
            ends = [part.value - part.lowest, part.highest - part.value]
            mark = {"transformer": "o", "conv": "s", "lstm": "^"}[str(kind)]
            line = style if kind == "transformer" else style | {"ls": "", "label": None}
            ax.errorbar(part.block_ms, part.value, yerr=ends, marker=mark, capsize=2, **line)
    ax.axhline(1.0, color="0.5", lw=1)
    ticks = [each for each in (1, 2, 5, 10, 20, 50, 100) if each < own.block_ms.max()]
    ax.set(xscale="log", ylim=0, ylabel="times as fast as the best backprop")
    ax.set_xticks(ticks, [f"{each:g}" for each in ticks])
    ax.minorticks_off()
    ax.set_xlabel("ms of a block, backprop on one core")
    marks = "circles: Transformer\nsquares: convolutions\ntriangle: LSTM"
    beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "frameon": False}
    ax.legend(title=marks, title_fontsize=7, fontsize=7, **beside)
    best = own[own.contender == "local_pipeline, steps"]
    said = (best if len(best) else own).value
    title = f"Compiled local layers: {said.min():.2f} to {said.max():.2f} times backprop's speed"
    ax.set_title(title, wrap=True)
    return fig
