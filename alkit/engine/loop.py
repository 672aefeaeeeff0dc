"""The one loop over epochs: batches, trainer, evaluation, history, callbacks, checkpoint.

    rates of the epoch -> batches -> trainer.train -> validation -> row -> callbacks -> checkpoint
                                                          the best epoch's weights -> test, once

A method gives it an `alkit.engine.trainer.Trainer`.
"""

import copy
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from alkit.base import files, tree
from alkit.data.given import Source, generators_of
from alkit.engine import checkpoint as checkpoints
from alkit.engine.callbacks import Best
from alkit.engine.evaluate import Judged
from alkit.engine.losses import check_finite, looked_at
from alkit.engine.messages import Group
from alkit.engine.rates import Rates
from alkit.engine.trainer import Plan, Record, Row, Trained, Trainer

KEPT = "rows", "best_epoch", "best", "stopped"  # of a run, in its file


def train_epochs(
    trainer: Trainer,
    plan: Plan,
    *,
    identity: Mapping[str, Any] | None = None,
    group: Group | None = None,
) -> Record:
    """Train for some epochs, choose the best one on validation, and test that one, once.

    Args:
        identity: what else, besides plan, rates and data, may not differ when a run is resumed.
    """
    group, path = group or Group(alone=True), plan.checkpoint
    held = files.locked(path) if group.rank == 0 and path is not None else nullcontext()
    with held, closing(Rates(trainer, plan.scheduler)) as rates:
        run = _Run(trainer, plan, rates, dict(identity or {}), group)
        shown = plan.progress and group.rank == 0
        if shown and run.ended and run.rows:
            tqdm.write(f"{path} holds the whole run, of {len(run.rows)} epochs: its result")
        bars = partial(tqdm, total=plan.epochs, initial=len(run.rows), disable=not shown)
        # miniters: it is shown within an epoch, too
        with bars(desc=plan.method, leave=False, miniters=0) as bar:
            while not run.ended:
                run.epoch(bar)
        return run.result()


class _Run:
    """The state of a run: its rows, its best epoch, and the file that keeps them."""

    def __init__(
        self, trainer: Trainer, plan: Plan, rates: Rates, identity: dict[str, Any], group: Group
    ) -> None:
        self.trainer, self.plan, self.rates, self.group = trainer, plan, rates, group
        self.best_by = next((each for each in plan.callbacks if type(each) is Best), Best())
        self.remembering: list[Any] = [e for e in plan.callbacks if hasattr(e, "state_dict")]
        self.settings = self._settings(identity)
        # without validation the last epoch is the best
        self.choose = plan.data.validation is not None or bool(self.best_by.column)
        self.rows: list[Row] = []
        self.best_epoch, self.stopped, self.seconds = 0, False, 0.0
        self.best = _copied(trainer.model) if self.choose else None
        self.last: Trained | None = None
        if plan.checkpoint is not None:
            self.path = Path(plan.checkpoint)
            self.first_rows = checkpoints.first_rows(plan.data.train)
            self._begin()
        if plan.metrics and not self.rows:  # one that fails does so before the first step
            held = plan.data.validation
            self._judged(plan.data.test if held is None else held)

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to train."""
        return self.stopped or len(self.rows) >= self.plan.epochs

    def epoch(self, bar: tqdm) -> None:
        """Train once on every batch, measure, ask the callbacks, and keep the results."""
        plan, trainer, rate = self.plan, self.trainer, self.rates.start_epoch()
        dealt = trainer.batches(plan, plan.data.train, len(self.rows))
        looked = looked_at(dealt, plan.loss, trainer.loss, plan.classes)
        batches = _Timed(looked, bar, plan.method)
        self._turn("train")
        trained, start_s = trainer.train(batches), time.perf_counter()
        self._turn("eval")
        check_finite(trained.losses, getattr(trained, "head", None))
        measured = self._judged(plan.data.validation).columns()
        times = {"data_s": batches.seconds, "train_s": trained.seconds - batches.seconds}
        times |= {"eval_s": time.perf_counter() - start_s, "step_s": trained.timeline.step_s}
        row: Row = {"epoch": len(self.rows) + 1, "lr": rate}
        row |= {"loss": _mean(trained.losses, batches.sizes), "samples": sum(batches.sizes)}
        # the method's columns stand before the times, and its own times count
        own = trainer.row(trained)
        row |= own | measured | times | own
        self.rates.end_epoch(row)
        self._call_back(row)
        self.rows.append(row)
        self.last, self.seconds = trained, self.seconds + trained.seconds
        worth = self.best_by.worth
        if not self.choose:
            self.best_epoch = len(self.rows)
        elif not self.best_epoch or worth(row) > worth(self.rows[self.best_epoch - 1]):
            self.best_epoch, self.best = len(self.rows), _copied(trainer.model)
        self._save()
        shown = [name for name in ("loss", "val_acc", "val_loss") if name in row]
        bar.set_postfix(**{name: f"{row[name]:.3f}" for name in shown})
        bar.update()

    def result(self) -> Record:
        """Give the model its best weights and test them."""
        self.trainer.gather()
        for name, own in self.trainer.model.named_parameters():
            if not own.isfinite().all():  # the last step's loss may have been a number still
                raise FloatingPointError(f"{name} is not finite after the last step: lower lr")
        if self.best is not None:
            self.trainer.model.load_state_dict(self.best)
            torch.clear_autocast_cache()  # a context of the caller's holds casts of the last ones
        tested, last = self._judged(self.plan.data.test), self.last
        return Record(
            model=self.trainer.model,
            history=pd.DataFrame(self.rows),
            losses=getattr(last, "losses", None),
            timeline=getattr(last, "timeline", None),
            test_correct=tested.correct,
            test_scores=tested.scores,
            metrics=tested.values,
            best_epoch=self.best_epoch,
            stopped_early=len(self.rows) < self.plan.epochs,
            seconds=self.seconds,
            settings=self.settings,
            details=last,
        )

    def _turn(self, mode: str) -> None:
        """Let optimisers that have modes know whether their weights are trained or used."""
        for each in self.trainer.named_optimizers().values():
            getattr(each, mode, bool)()

    def _call_back(self, row: Row) -> None:
        """Let the callbacks add columns, or end the run; ranks end together."""
        stop = False
        if self.plan.callbacks:
            self.trainer.gather()
        for each in self.plan.callbacks:
            answer = each(row, self.trainer.model)
            if isinstance(answer, Mapping):
                if twice := row.keys() & answer.keys():
                    raise ValueError(f"a callback returns {twice.pop()!r}, which the row has")
                row |= answer
            stop |= answer is True
        self.stopped = self.group.broadcast(stop)

    def _judged(self, part: Source | None) -> Judged:
        if part is None:
            return Judged()
        self.trainer.gather()
        return self.trainer.judge(part, self.plan.metrics)

    # ---- the file

    def _settings(self, identity: dict[str, Any]) -> dict[str, Any]:
        """Return the settings that may not differ where a run goes on."""
        plan = self.plan
        settings: dict[str, Any] = {n: getattr(plan, n) for n in ("epochs", "batch_size", "seed")}
        settings |= {"scheduler": str(self.rates), "best": self.best_by.column or "its own"}
        settings |= identity
        settings |= {f"lr of {name}": rate for name, rate in self.rates.base.items()}
        settings |= {"callbacks": [type(each).__name__ for each in self.remembering]}
        settings |= {"metrics": sorted(plan.metrics or ())}
        return settings | {"data": plan.data.fingerprint(whole=plan.checkpoint is not None)}

    def _begin(self) -> None:
        """Go on from the file, or write it: a run that its first epoch ends goes on, too."""
        # ranks may be on machines with a disk each, and be dealt anew when a run is started again
        there = self.group.gather(self.path.exists())
        if any(there):
            self._resume(there.index(True))
        else:
            self._save()

    def _save(self) -> None:
        if self.plan.checkpoint is None:
            return
        state = self.trainer.state()
        found: dict[str, Any] = {name: getattr(self, name) for name in KEPT}
        found |= {"settings": self.settings, "network": repr(self.trainer.model)}
        found |= {"first_loss": checkpoints.loss_on(self.first_rows, self.trainer)}
        found |= {"generators": [each.get_state() for each in generators_of(self.plan.data.train)]}
        found |= {"callbacks": [each.state_dict() for each in self.remembering]}
        if self.group.rank == 0:
            checkpoints.save(self.path, state | found)

    def _resume(self, source: int) -> None:
        mine, trainer = self.group.rank == source, self.trainer
        saved = self.group.broadcast(checkpoints.load(self.path) if mine else None, source)
        before, text = saved["settings"].get("epochs", 0), repr(trainer.model)
        longer = before < self.plan.epochs and self.settings["scheduler"] == "constant"
        same = self.settings | ({"epochs": before} if longer else {})
        here = checkpoints.marks(trainer.state(), same, text)
        there = checkpoints.marks(saved, saved["settings"], saved.get("network", text))
        kept = _copied(trainer.model)
        if not (different := checkpoints.difference(there, here)):
            trainer.model.load_state_dict(saved["model"])
            first_loss = checkpoints.loss_on(self.first_rows, trainer)
            different = checkpoints.other_loss(saved.get("first_loss"), first_loss)
        if different:
            trainer.model.load_state_dict(kept)
            said = f"{self.path} is of another run: {different}"
            raise ValueError(f"{said}; give another path, or delete it")
        trainer.load(saved)
        drawn = generators_of(self.plan.data.train)
        for each, state in zip(drawn, saved["generators"], strict=False):
            each.set_state(state)
        for callback, state in zip(self.remembering, saved["callbacks"], strict=True):
            callback.load_state_dict(state)
        for name in KEPT:
            setattr(self, name, saved[name])


class _Timed:
    """Batches, the bar that counts them, and the seconds that the run waited for them."""

    def __init__(self, batches: Iterable[Any], bar: tqdm, name: str) -> None:
        self.batches, self.bar, self.name, self.seconds = batches, bar, name, 0.0
        self.sizes: list[int] = []  # samples of each batch

    def __iter__(self) -> Iterator[Any]:
        start_s = time.perf_counter()
        for batch in self.batches:
            self.seconds += time.perf_counter() - start_s
            self.sizes.append(tree.batch_size(batch[0]))
            self.bar.set_description(f"{self.name}, batch {len(self.sizes)}", refresh=False)
            self.bar.update(0)
            yield batch
            start_s = time.perf_counter()
        self.seconds += time.perf_counter() - start_s


def _copied(model: Any) -> dict[str, Tensor]:
    return copy.deepcopy(dict(model.state_dict()))


def _mean(losses: Tensor, sizes: Sequence[int]) -> float:
    """Return the mean over samples: a batch weighs by how many it has."""
    if len(losses) != len(sizes):  # of a method that keeps another number of losses
        return losses.mean().item()
    weights = torch.tensor(sizes, dtype=torch.float64)
    return float((losses.double().view(len(losses), -1).mean(1) * weights).sum() / weights.sum())
