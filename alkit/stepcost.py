"""What a training step costs: time in interleaved rounds, memory in a process of its own."""

import multiprocessing
import resource
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from alkit import bench, families
from alkit.parts import DataSet, Part
from alkit.train import EpochRecord, train_epoch

__all__ = ["Setting", "compare", "peak_mib"]

WORDS = 20_000


@dataclass(frozen=True)
class Setting:
    """A family on random data of real shapes; time does not depend on what the numbers are.

    Attributes:
        recipe: of AL, or "" for BP.
        legacy: texts with the published defects (no packing, unused parameters).
        sizes: of the blocks, as in `families.model`.
    """

    family: str
    recipe: str
    legacy: bool = False
    classes: int = 200
    batch_size: int = 32
    steps: int = 3
    tokens: int = 60
    threads: int = 1
    sizes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name it as tables do: "bp", "al modern"."""
        return f"al {self.recipe}" if self.recipe else "bp"

    def run(self) -> EpochRecord:
        """Make the model anew and train it for the steps; only these are timed."""
        torch.manual_seed(0)
        data, method = self._data(), "al" if self.recipe else "bp"
        recipe = self.recipe or "modern"
        options = {"recipe": recipe, "legacy": self.legacy, **self.sizes}
        model = families.model(self.family, data, method, **options)
        batches = list(data.train.batches(self.batch_size)) * self.steps
        return train_epoch(model, batches, method, threads=self.threads)

    def _data(self) -> DataSet:
        y = torch.arange(self.batch_size) % self.classes
        part = Part(self._inputs(), y, self.classes)
        names = tuple(map(str, range(self.classes)))
        words = range(WORDS) if part.is_text else None
        return DataSet("random", part, part, part, self.classes, names, words)

    def _inputs(self) -> Tensor:
        if self.family in ("vgg", "resnet"):
            return torch.randn(self.batch_size, 3, 32, 32)
        return torch.randint(2, WORDS, (self.batch_size, self.tokens))


def compare(settings: Sequence[Setting], over: str, repeats: int = 3) -> pd.DataFrame:
    """Measure settings against each other.

    Returns:
        Columns label, step_ms (median over the rounds), speedup over `over` with the lowest and
        highest round, peak_mib of a process of its own, n rounds.
    """
    contenders = {setting.label: setting.run for setting in settings}
    runs = bench.interleaved(contenders, repeats)
    table = bench.compare(runs, over)
    steps = {setting.label: setting.steps for setting in settings}
    memory = {setting.label: peak_mib(setting) for setting in settings}
    made = {
        "label": table["name"],
        "step_ms": 1000 * table["seconds"] / table["name"].map(steps),
        "peak_mib": table["name"].map(memory),
    }
    return pd.DataFrame(made).join(table[["speedup", "lowest", "highest", "n"]])


def peak_mib(setting: Setting) -> float:
    """Return the most memory that training takes beyond what the imports take, in MiB.

    The step runs in a fresh process, whose highest resident size is read before and after.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(partial(_grown, setting)).result()


def _grown(setting: Setting) -> float:
    torch.set_num_threads(setting.threads)
    before = _highest_mib()
    setting.run()
    return _highest_mib() - before


def _highest_mib() -> float:
    """Return this process's highest resident size so far."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent held when it started this process
        line = next(row for row in status.read_text().splitlines() if row.startswith("VmHWM"))
        return int(line.split()[1]) / 2**10
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest / (2**20 if sys.platform == "darwin" else 2**10)  # macOS counts bytes
