"""Fit with validation and checkpoints, and evaluate."""

import copy
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from alkit.al.backprop import BPModel
from alkit.al.label_side import stalled
from alkit.al.model import ALModel
from alkit.al.train import EpochRecord, train_epoch
from alkit.data import files
from alkit.data.arguments import Brief, check_whole
from alkit.data.datasets import DataSet, Part
from alkit.engine import checkpoint as checkpoints
from alkit.engine.group import Group
from alkit.engine.rates import rates, scheduled

__all__ = ["Fit", "evaluate", "fit"]

Row = dict[str, int | float]


@torch.no_grad()
def evaluate(
    model: ALModel | BPModel, part: Part, *, depth: int | None = None, batch_size: int = 512
) -> Tensor:
    """Return which samples of `part` are classified correctly: float (N,), 0 or 1, in its order.

    Args:
        depth: leave an ALModel at this layer; default the full path.
    """
    correct = []
    for x, y in part.batches(batch_size, shuffle=False):
        scores = model.predict(x) if depth is None else model.predict(x, depth)
        correct.append((scores.argmax(1).cpu() == y.argmax(1)).float())
    return torch.cat(correct)


@dataclass(frozen=True, repr=False)
class Fit(Brief):
    """What `fit` leaves behind; the model has the weights of its best epoch.

    Attributes:
        history: a row an epoch. epoch, from 1; lr, of the first optimiser; loss, the mean of all;
            with AL associated_1, autoencoder_1, associated_2, ... by layer, from 1; val_acc, and
            if asked for val_acc_1, ... by depth, and train_acc; with AL stalled, how many label
            autoencoders do no better than a constant (see `alkit.al.label_side.stalled`); data_s,
            train_s and eval_s: seconds in which batches were waited for, the rest of training, and
            evaluation; step_s, median seconds of a batch. In a pipeline the workers train on while
            the next batch is made.
        best_epoch: by validation accuracy, the first if several are equal; from 1.
        test_correct: float (N,) on the test part, of the best epoch.
        stopped_early: whether patience ended before the epochs did.
    """

    history: pd.DataFrame
    best_epoch: int
    test_correct: Tensor
    stopped_early: bool = False

    @property
    def test_acc(self) -> float:
        """Share of the test part that is right."""
        return self.test_correct.mean().item()


def fit(
    model: ALModel | BPModel,
    data: DataSet,
    *,
    epochs: int,
    batch_size: int = 64,
    mode: str = "al",
    workers: int | None = None,
    threads: int = 1,
    executor: str = "threads",
    seed: int = 0,
    schedule: str = "constant",
    end_factor: float = 0.1,
    augment: str = "none",
    checkpoint: str | Path | None = None,
    patience: int | None = None,
    evaluate_train: bool = False,
    exits: bool = False,
    tensorboard: str | Path | None = None,
    progress: bool = True,
) -> Fit:
    """Train for some epochs, choose the best one on validation, and test that one, once.

    Args:
        executor: "threads" or "ranks", as in `train_epoch`. On ranks every rank evaluates and
            returns the same; only rank 0 writes the checkpoint, and shows progress.
        schedule: "constant", or "cosine" from each optimiser's rate to `end_factor` of it; the
            model has its own rates back afterwards.
        augment: how training images are changed; see `Part.batches`.
        checkpoint: file to keep the run in, written before the first and after every epoch. If it
            is there, the run goes on from it and ends in the bits of an uninterrupted one; the
            result of a finished run is returned as it is. Mode, workers, executor, tensorboard and
            progress may differ from the run that wrote it; all else may not.
        patience: stop after so many epochs in a row without a better validation accuracy.
        evaluate_train: also measure the accuracy on the training part, not augmented.
        exits: also measure the validation accuracy of every exit of an ALModel.
        tensorboard: folder for TensorBoard's files; needs `pip install alkit[tensorboard]`.
    Raises:
        ValueError: an option that doesn't fit, or a checkpoint that is damaged or of another run.
    """
    check_whole(epochs=epochs, patience=patience, batch_size=batch_size)
    if exits and not isinstance(model, ALModel):
        raise ValueError(f"exits=True needs an ALModel, got a {type(model).__name__}")
    # what may not differ when a run is resumed
    settings: dict[str, Any] = {
        **{"epochs": epochs, "batch_size": batch_size, "threads": threads, "seed": seed},
        **{"schedule": schedule, "end_factor": end_factor, "augment": augment},
        **{"patience": patience, "evaluate_train": evaluate_train, "exits": exits},
        **{f"lr of {name}": rate for name, rate in rates(model).items()},
        "data": _fingerprint(data),
    }
    extra = {} if augment == "none" else {"augment": augment}
    with scheduled(model, schedule, epochs, end_factor) as start_epoch:
        first = Group(executor).is_first
        run = _Run(model, settings, checkpoint, writes=first)
        with (
            _board(tensorboard if first else None, run.resumed_at) as write,
            _bar(f"{mode}, seed {seed}", epochs, len(run.rows), progress and first) as bar,
        ):
            while not run.ended:
                rate = start_epoch(epoch := len(run.rows))
                batches = _Timed(data.train.batches(batch_size, seed=seed, epoch=epoch, **extra))
                options = {"seed": seed, "executor": executor}
                record = train_epoch(model, batches, mode, workers, threads, **options)
                measured = _measure(model, data, evaluate_train, exits) | _stalled(model, data)
                row = _row(epoch + 1, rate, record, batches.seconds, measured)
                write(row)
                run.add(row)
                _show(bar, record, row)
        return run.result(data.test)


class _Run:
    """What a run has come to: its rows, its best epoch, and the file that keeps them."""

    def __init__(
        self,
        model: ALModel | BPModel,
        settings: dict[str, Any],
        path: str | Path | None,
        writes: bool = True,
    ) -> None:
        self.model, self.settings, self.path = model, settings, path if writes else None
        self.rows: list[Row] = []
        self.best_epoch = 0
        self.best: dict[str, Tensor] = {}
        self.test_correct: Tensor | None = None
        self.resumed_at: int | None = None
        if path is None:
            return
        if writes:
            files.clean(path)
        if Path(path).exists():
            self._resume(path)
        else:
            # so that a run interrupted in its first epoch also goes on from where it began
            self._save()

    @property
    def stale(self) -> bool:
        """Whether patience has ended."""
        patience = self.settings["patience"]
        return patience is not None and len(self.rows) - self.best_epoch >= patience

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to train."""
        return len(self.rows) == self.settings["epochs"] or self.stale

    def add(self, row: Row) -> None:
        """Take in an epoch's row, and the model's weights if it is the best so far."""
        self.rows.append(row)
        if not self.best_epoch or row["val_acc"] > self.rows[self.best_epoch - 1]["val_acc"]:
            self.best_epoch, self.best = len(self.rows), copy.deepcopy(self.model.state_dict())
        self._save()

    def result(self, test: Part) -> Fit:
        """Give the model its best weights and test them, unless that has been done."""
        self.model.load_state_dict(self.best)
        if self.test_correct is None:
            self.test_correct = evaluate(self.model, test)
            self._save()
        early = len(self.rows) < self.settings["epochs"]
        return Fit(pd.DataFrame(self.rows), self.best_epoch, self.test_correct, early)

    def _save(self) -> None:
        if self.path is None:
            return
        kept = {"rows": self.rows, "best_epoch": self.best_epoch, "best": dict(self.best)}
        whole = {"settings": self.settings, "test_correct": self.test_correct}
        checkpoints.save(self.path, checkpoints.snapshot(self.model) | kept | whole)

    def _resume(self, path: str | Path) -> None:
        saved = checkpoints.load(path)
        checkpoints.check(path, saved, self.model, self.settings)
        checkpoints.restore(self.model, saved)
        self.rows, self.best_epoch, self.best = saved["rows"], saved["best_epoch"], saved["best"]
        self.test_correct, self.resumed_at = saved["test_correct"], len(self.rows)


class _Timed:
    """Batches, and the seconds that they were waited for."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches, self.seconds = batches, 0.0

    def __iter__(self) -> Iterator[Any]:
        stream = None
        while True:
            start_s = time.perf_counter()
            try:
                stream = iter(self.batches) if stream is None else stream
                batch = next(stream)
            except StopIteration:
                return
            finally:
                self.seconds += time.perf_counter() - start_s
            yield batch


def _measure(model: ALModel | BPModel, data: DataSet, train: bool, exits: bool) -> Row:
    """Return the accuracies that were asked for, and the seconds it took."""
    start_s = time.perf_counter()
    measured: Row = {"val_acc": evaluate(model, data.validation).mean().item()}
    for depth in range(1, len(model) if exits else 0):
        accuracy = evaluate(model, data.validation, depth=depth).mean().item()
        measured[f"val_acc_{depth}"] = accuracy
    if exits:
        measured[f"val_acc_{len(model)}"] = measured["val_acc"]
    if train:
        measured["train_acc"] = evaluate(model, data.train).mean().item()
    return measured | {"eval_s": time.perf_counter() - start_s}


def _row(epoch: int, rate: float, record: EpochRecord, data_s: float, measured: Row) -> Row:
    row: Row = {"epoch": epoch, "lr": rate, "loss": record.losses.mean().item()}
    per_layer = record.losses.mean(0)
    if per_layer.shape[1] == 2:
        for at, (associated, autoencoder) in enumerate(per_layer.tolist(), 1):
            row |= {f"associated_{at}": associated, f"autoencoder_{at}": autoencoder}
    eval_s = measured.pop("eval_s")
    times = {"data_s": data_s, "train_s": record.seconds - data_s, "eval_s": eval_s}
    return row | measured | times | {"step_s": record.timeline.step_s}


def _stalled(model: ALModel | BPModel, data: DataSet) -> Row:
    """Count the label autoencoders that do no better than a constant."""
    if isinstance(model, BPModel):
        return {}
    return {"stalled": len(stalled(model, data.num_classes))}


def _bar(name: str, epochs: int, done: int, progress: bool) -> tqdm:
    return tqdm(total=epochs, initial=done, desc=name, disable=not progress, leave=False)


def _show(bar: tqdm, record: EpochRecord, row: Row) -> None:
    means = record.losses.mean((0, 1)).tolist()
    names = ("associated", "autoencoder") if len(means) == 2 else ("loss",)
    losses = {name: f"{mean:.3g}" for name, mean in zip(names, means, strict=True)}
    bar.set_postfix(**losses, val_acc=f"{row['val_acc']:.3f}")
    bar.update()


@contextmanager
def _board(folder: str | Path | None, resumed_at: int | None) -> Iterator[Callable[[Row], None]]:
    """Yield a function that writes a row to TensorBoard's files, if there is a folder for them."""
    if folder is None:
        yield lambda row: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "tensorboard= needs a package that is not installed: pip install alkit[tensorboard]"
        ) from error
    # what an interrupted run wrote after its last checkpoint is written once more
    writer = SummaryWriter(str(folder), purge_step=None if resumed_at is None else resumed_at + 1)

    def write(row: Row) -> None:
        for name, value in row.items():
            if name != "epoch":
                writer.add_scalar(name, value, row["epoch"])
        writer.flush()

    with closing(writer):
        yield write


def _fingerprint(data: DataSet) -> str:
    """Name a data set, its sizes, and a hash of its labels: another split is other data."""
    parts = (data.train, data.validation, data.test)
    digest = hashlib.blake2b(digest_size=4)
    for part in parts:
        digest.update(part.y.cpu().numpy().tobytes())
    return f"{data.name} {'/'.join(str(len(part)) for part in parts)} {digest.hexdigest()}"
