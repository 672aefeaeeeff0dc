"""What a training step costs: time in interleaved rounds, memory in a process of its own."""

import multiprocessing
import resource
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from alkit.al.train import Trained, train_epoch
from alkit.data import datasets
from alkit.data.parts import DataSet, Part
from studies.al import families
from studies.common import timing

__all__ = ["Setting", "compare", "peak_mib"]


@dataclass(frozen=True)
class Setting:
    """A family on a batch to time its step with: random pictures, or texts of a real set.

    Pictures may be random, for time does not depend on what the numbers are; but how long texts are
    decides how much of a batch is padding.

    Attributes:
        recipe: of AL, or "" for BP.
        legacy: texts with the published defects (work on padding, unused parameters).
        classes: of the pictures.
        texts: name of the set that texts come from.
        tokens: the most words of a text.
        sizes: of the blocks, as in `families.model`.
    """

    family: str
    recipe: str
    legacy: bool = False
    classes: int = 200
    batch_size: int = 32
    steps: int = 3
    texts: str = "pydocs"
    tokens: int = 60
    threads: int = 1
    sizes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name it as tables do: "bp", "al fixed_codes"."""
        return f"al {self.recipe}" if self.recipe else "bp"

    def run(self) -> Trained:
        """Make the model anew and train it for the steps; only these are timed."""
        torch.manual_seed(0)
        data, method = self._data(), "al" if self.recipe else "bp"
        recipe = self.recipe or "fixed_codes"
        options = {"recipe": recipe, "legacy": self.legacy, **self.sizes}
        model = families.model(self.family, data, method, **options)
        batches = list(data.train.batches(self.batch_size)) * self.steps
        method = "local" if getattr(model, "rule", "") else method
        return train_epoch(model, batches, method, threads=self.threads)

    def _data(self) -> DataSet:
        if self.family not in ("vgg", "resnet"):
            full = datasets.load(self.texts, max_len=self.tokens)
            return full.subset(train=self.batch_size)
        pictures = torch.randn(self.batch_size, 3, 32, 32)
        part = Part(pictures, torch.arange(self.batch_size) % self.classes, self.classes)
        names = tuple(map(str, range(self.classes)))
        return DataSet("random pictures", part, part, part, self.classes, names)


def compare(settings: Sequence[Setting], over: str, repeats: int = 3) -> pd.DataFrame:
    """Measure settings against each other.

    Returns:
        Columns label, step_ms (median over the rounds), speedup over `over` with the lowest and
        highest round, peak_mib of a process of its own, n rounds.
    """
    contenders = {setting.label: setting.run for setting in settings}
    runs = timing.interleaved(contenders, repeats)
    table = timing.compare(runs, over)
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
        return pool.submit(_grown, setting).result()


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
