"""The one loop over epochs: batches, trainer, evaluation, history, checkpoint, stop.

    rates of the epoch -> batches -> trainer.train -> validation -> row -> checkpoint -> patience
                                                          the best epoch's weights -> test, once

What a method gives to it is an `alkit.engine.trainer.Trainer`.
"""

import copy
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from alkit.data import files, tree
from alkit.data.arguments import check_real, check_whole, given
from alkit.data.given import Loader, Source, Splits, undisturbed
from alkit.engine import checkpoint as checkpoints
from alkit.engine.behaviour import Rows, difference, text_of
from alkit.engine.evaluate import Judged, Metrics, measured_loss
from alkit.engine.group import Group
from alkit.engine.precision import autocast, check_precision
from alkit.engine.rates import Rates, Scheduler, check_scheduler, scheduled
from alkit.engine.record import Record
from alkit.engine.trainer import Row, Trained, Trainer


@dataclass(frozen=True)
class Plan:
    """What is asked of a run, beside the method's own settings.

    Attributes:
        scheduler, scheduler_every, end_factor: of the rates, see `alkit.engine.rates`; the model
            has its own back afterwards.
        augment: how training images are changed; see `Part.batches`.
        drop_last: leave a last, smaller batch out.
        precision: of `alkit.engine.precision.PRECISIONS`.
        clip: largest norm of gradients; accumulate: batches whose mean gradient makes a step.
        patience: stop after so many epochs in a row without a better validation accuracy.
        evaluate_train: also measure the accuracy on the training part, not augmented.
        stop_at_divergence: a loss that is not finite ends the run instead of raising.
    """

    epochs: int = 1
    batch_size: int = 32
    seed: int = 0
    scheduler: Scheduler = "constant"
    scheduler_every: str = "epoch"
    end_factor: float = 0.1
    augment: str = "none"
    drop_last: bool = False
    precision: str = "float32"
    clip: float | None = None
    accumulate: int = 1
    patience: int | None = None
    evaluate_train: bool = False
    stop_at_divergence: bool = False

    def __post_init__(self) -> None:
        check_whole(epochs=self.epochs, patience=self.patience, batch_size=self.batch_size)
        check_whole(accumulate=self.accumulate)
        check_precision(self.precision)
        check_scheduler(self.scheduler, self.scheduler_every, self.end_factor)
        check_real("clip", self.clip)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise TypeError(f"seed is {given(self.seed)}: it must be a whole number")

    def batches(self, train: Source, epoch: int) -> Iterable[tuple[Any, Tensor]]:
        """Return an epoch's batches of the training part, as a trainer has them by default."""
        extra: dict[str, Any] = {} if self.augment == "none" else {"augment": self.augment}
        if self.drop_last:
            extra["drop_last"] = True
        return train.batches(self.batch_size, seed=self.seed, epoch=epoch, **extra)


def train_epochs(
    trainer: Trainer,
    data: Splits,
    plan: Plan,
    *,
    identity: Mapping[str, Any] | None = None,
    checkpoint: str | Path | None = None,
    anyway: bool = False,
    progress: bool = True,
    group: Group | None = None,
    choose: bool = True,
    metrics: Metrics | None = None,
) -> Record:
    """Train for some epochs, choose the best one on validation, and test that one, once.

    Args:
        identity: what else, beside plan, rates and data, may not differ when a run is resumed.
        checkpoint: file to keep the run in, written before the first and after every epoch. If it
            is there, the run goes on from it and ends in the bits of an uninterrupted one; a
            finished run is tested, and not trained.
        anyway: go on from it although it is of another run; shapes must be the same.
        group: the ranks that run this; the first one writes files and shows progress.
        choose: whether the best epoch's weights are the result; otherwise the last one's.
        metrics: what else is measured on validation and test, see `alkit.engine.evaluate.judge`.
    Raises:
        ValueError: an option that doesn't fit, or a checkpoint that is damaged or of another run.
        FloatingPointError: a loss is not finite; see `Plan.stop_at_divergence`.
    """
    group = group or Group("single")
    writes = group.is_first
    follows = plan.scheduler, plan.epochs, plan.end_factor, plan.scheduler_every
    held = files.locked(checkpoint) if writes and checkpoint is not None else nullcontext()
    with held, autocast(plan.precision), scheduled(trainer, *follows) as rates:
        rates.check(validated=data.validation is not None)
        if rates.follow_loss and data.validation is not None:
            metrics = {"loss": partial(measured_loss, trainer.loss), **(metrics or {})}
        settings = asdict(plan) | {"scheduler": str(rates)} | dict(identity or {})
        settings |= {f"lr of {name}": rate for name, rate in rates.base.items()}
        settings |= {"data": data.fingerprint()}
        settings |= {"metrics": sorted(metrics)} if metrics else {}
        kept = None if checkpoint is None else _Kept(Path(checkpoint), data.train, anyway=anyway)
        # without validation the last epoch is the best; a run that diverges goes back to one before
        choose = choose and (data.validation is not None or plan.stop_at_divergence)
        run = _Run(trainer, settings, kept, group, choose, rates)
        if progress and writes and run.ended and run.resumed_at:
            tqdm.write(f"{checkpoint} holds the whole run, of {run.resumed_at} epochs: its result")
        with _bar(trainer.name, plan.epochs, len(run.rows), progress and writes) as bar:
            while not run.ended:
                rate = rates.start_epoch(epoch := len(run.rows))
                own = trainer.batches(plan, data.train, epoch)
                batches = _Timed(own, bar, trainer.name)
                try:
                    trained = trainer.train(batches)
                except FloatingPointError:
                    if not plan.stop_at_divergence:
                        raise
                    run.diverge()
                    break
                measured = _measure(trainer, data, plan.evaluate_train, metrics)
                row = _row(epoch + 1, rate, trainer, trained, batches, measured)
                rates.end_epoch(row)
                run.add(row, trained)
                _show(bar, trainer.shown(trained), row)
        return run.result(data.test, metrics)


class _Kept:
    """The file that keeps a run, and what tells another run's.

    Attributes:
        rows: those that scores are compared on.
        generators: of the user's loader, which go on from epoch to epoch.
    """

    def __init__(self, path: Path, train: Source, *, anyway: bool) -> None:
        self.path, self.anyway = path, anyway
        self.rows = Rows(train)
        self.generators = train.generators() if isinstance(train, Loader) else []

    def state(self) -> dict[str, Any]:
        """Return where the user's generators are."""
        return {"generators": [each.get_state() for each in self.generators]}

    def load(self, trainer: Trainer, saved: Mapping[str, Any]) -> None:
        """Put trainer and generators where the run was, or leave them as they are.

        Raises:
            ValueError: the saved weights do something else here.
        """
        before = _copied(trainer.model)
        trainer.model.load_state_dict(saved["model"])
        here = self.rows.behaviour(trainer)
        different = "" if self.anyway else difference(saved.get("behaviour", {}), here)
        if different:
            trainer.model.load_state_dict(before)
            checkpoints.refuse(self.path, different)
        trainer.load(saved)
        for each, state in zip(self.generators, saved.get("generators", ()), strict=False):
            each.set_state(state)


class _Run:
    """What a run has come to: its rows, its best epoch, and the file that keeps them."""

    def __init__(
        self,
        trainer: Trainer,
        settings: dict[str, Any],
        kept: _Kept | None,
        group: Group,
        choose: bool,
        rates: Rates,
    ) -> None:
        self.rates = rates
        self.trainer, self.model, self.settings = trainer, trainer.model, settings
        self.kept, self.writes, self.choose = kept, group.is_first, choose
        self.rows: list[Row] = []
        self.best_epoch, self.diverged, self.seconds = 0, False, 0.0
        self.best = _copied(self.model) if choose else None
        self.last: Trained | None = None
        self.resumed_at: int | None = None
        self.network = text_of(self.model)
        if kept is None:
            return
        if self.writes:
            files.clean(kept.path)
        # ranks may be of machines with a disk each, and be dealt anew when a run is started again
        there = group.gather(kept.path.exists())
        if any(there):
            self._resume(kept, group, source=there.index(True))
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
        return len(self.rows) >= self.settings["epochs"] or self.stale or self.diverged

    def add(self, row: Row, trained: Trained) -> None:
        """Take in an epoch's row, and the model's weights if it is the best so far."""
        self.rows.append(row)
        self.last, self.seconds = trained, self.seconds + trained.seconds
        if not self.choose:
            self.best_epoch = len(self.rows)
        elif not self.best_epoch or _worth(row) > _worth(self.rows[self.best_epoch - 1]):
            self.best_epoch, self.best = len(self.rows), _copied(self.model)
        self._save()

    def diverge(self) -> None:
        """Note the end that a loss was no number, beside weights that can be compared."""
        self.diverged = True
        if self.best is not None:
            self.model.load_state_dict(self.best)
        self._save()

    def result(self, test: Source | None, metrics: Metrics | None = None) -> Record:
        """Give the model its best weights and test them."""
        if self.best is not None:
            self.model.load_state_dict(self.best)
        tested = Judged() if test is None else self.trainer.judge(test, metrics)
        return Record(
            model=self.model,
            history=pd.DataFrame(self.rows),
            losses=None if self.last is None else self.last.losses,
            timeline=None if self.last is None else self.last.timeline,
            test_correct=tested.correct,
            metrics=tested.values,
            best_epoch=self.best_epoch,
            stopped_early=len(self.rows) < self.settings["epochs"],
            diverged=self.diverged,
            seconds=self.seconds,
            settings=self.settings,
            details=self.last,
        )

    def _save(self) -> None:
        if self.kept is None:
            return
        state = self.trainer.state()
        found = {"rows": self.rows, "best_epoch": self.best_epoch, "best": self.best}
        found |= {"diverged": self.diverged, "settings": self.settings, "network": self.network}
        found |= {"behaviour": self.kept.rows.behaviour(self.trainer)} | self.kept.state()
        if self.writes:
            checkpoints.save(self.kept.path, state | found)

    def _resume(self, kept: _Kept, group: Group, source: int) -> None:
        path, mine = kept.path, group.rank == source
        saved = group.broadcast(checkpoints.load(path) if mine else None, source)
        before = saved["settings"].get("epochs", 0)
        level = self.settings["scheduler"] == "constant"
        longer = before < self.settings["epochs"] and level
        same = self.settings | ({"epochs": before} if longer else {})
        same = saved["settings"] if kept.anyway else same
        checkpoints.check(path, saved, self.trainer.state(), same, self.network)
        kept.load(self.trainer, saved)
        self.diverged = saved.get("diverged", False)
        self.rows, self.best_epoch, self.best = saved["rows"], saved["best_epoch"], saved["best"]
        self.resumed_at = len(self.rows)
        self.rates.resume(self.rows)


class _Timed:
    """Batches, the bar that tells how many there were, and the seconds they were waited for."""

    def __init__(self, batches: Iterable[Any], bar: tqdm, name: str) -> None:
        self.batches, self.bar, self.name, self.seconds = batches, bar, name, 0.0
        self.sizes: list[int] = []  # samples of each batch

    def __iter__(self) -> Iterator[Any]:
        stream = None
        for number in count(1):
            start_s = time.perf_counter()
            try:
                stream = iter(self.batches) if stream is None else stream
                batch = next(stream)
            except StopIteration:
                return
            finally:
                self.seconds += time.perf_counter() - start_s
            self.bar.set_description(f"{self.name}, batch {number}", refresh=False)
            self.bar.update(0)
            self.sizes.append(tree.batch_size(batch[0]))
            yield batch


def _copied(model: Any) -> dict[str, Tensor]:
    return copy.deepcopy(dict(model.state_dict()))


def _worth(row: Row) -> float:
    """Return what makes an epoch the best one; without a validation part the last one is.

    What is no number is never the best.
    """
    worth = row.get("val_acc", -row["val_loss"] if "val_loss" in row else row["epoch"])
    return -math.inf if math.isnan(worth) else worth


def _measure(trainer: Trainer, data: Splits, train: bool, metrics: Metrics | None) -> Row:
    """Return what was asked for of the parts, and the seconds it took."""
    start_s = time.perf_counter()
    measured: Row = {}
    if data.validation is not None:
        measured |= trainer.judge(data.validation, metrics).row("val")
    measured |= trainer.measure(data)
    if train:
        with undisturbed(data.train):
            measured |= trainer.judge(data.train, None).row("train")
    return measured | {"eval_s": time.perf_counter() - start_s}


def _row(
    epoch: int, rate: float, trainer: Trainer, trained: Trained, batches: "_Timed", measured: Row
) -> Row:
    row: Row = {"epoch": epoch, "lr": rate, "loss": _mean(trained.losses, batches.sizes)}
    row["samples"] = sum(batches.sizes)
    eval_s = measured.pop("eval_s")
    data_s = batches.seconds
    times = {"data_s": data_s, "train_s": trained.seconds - data_s, "eval_s": eval_s}
    own = trainer.row(trained)  # stands before the times, and its own times count
    return row | own | measured | times | {"step_s": trained.timeline.step_s} | own


def _mean(losses: Tensor, sizes: Sequence[int]) -> float:
    """Return the mean over samples: a batch weighs by how many it has."""
    if len(losses) != len(sizes):  # of a method that keeps another number of losses
        return losses.mean().item()
    weights = torch.tensor(sizes, dtype=torch.float64)
    return float((losses.double().view(len(losses), -1).mean(1) * weights).sum() / weights.sum())


def _bar(name: str, epochs: int, done: int, progress: bool) -> tqdm:
    options = {"total": epochs, "initial": done, "desc": name, "disable": not progress}
    return tqdm(**options, leave=False, miniters=0)  # shown within an epoch, too


def _show(bar: tqdm, losses: Mapping[str, float], row: Row) -> None:
    shown = {name: f"{mean:.3g}" for name, mean in losses.items()}
    shown |= {name: f"{row[name]:.3f}" for name in ("val_acc", "val_loss") if name in row}
    bar.set_postfix(**shown)
    bar.update()
