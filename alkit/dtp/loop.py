"""Epochs around a trainer: batches, rates, evaluation, checkpoints, the record."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from alkit.data.parts import DataSet
from alkit.dtp import checkpoint as checkpoints
from alkit.dtp.checkpoint import Progress
from alkit.dtp.evaluation import correct, gradient_angles
from alkit.dtp.networks import Net
from alkit.dtp.optimizers import rate
from alkit.dtp.record import Record, digest
from alkit.dtp.settings import Settings
from alkit.dtp.trainer import Trained, Trainer
from alkit.engine.caller import CallerState
from alkit.engine.group import Group
from alkit.engine.local import operator_threads
from alkit.engine.ranks import merged

__all__ = ["run"]


def run(
    net: Net,
    data: DataSet,
    settings: Settings,
    *,
    owners: list[int] | None = None,
    checkpoint: Path | None = None,
    progress: bool = True,
) -> Record:
    """Train on this process, or as one of the ranks of a group; arguments as of `train`.

    Raises:
        ValueError: settings that don't fit the network, or another run's checkpoint.
        NotFinite: a loss is not.
        RanksDiffer: ranks have different weights or batches.
    """
    with operator_threads(settings.threads), CallerState.here().training():
        loop = _Loop(net, data, settings, owners, checkpoint)
        loop.begin()
        loop.go(progress)
        return loop.record()


class _Loop:
    """The state of one run."""

    def __init__(
        self,
        net: Net,
        data: DataSet,
        settings: Settings,
        owners: list[int] | None,
        checkpoint: Path | None,
    ) -> None:
        self.data, self.settings, self.checkpoint = data, settings, checkpoint
        self.group, self.now = Group(), Progress()
        batches = self._batches(0)
        self.steps = settings.epochs * len(batches)
        sample = next(iter(batches))[0]
        self.trainer = Trainer(net, settings, sample, owners=owners, group=self.group)

    def begin(self) -> None:
        """Make sure that all ranks begin alike, or go on from a checkpoint."""
        # rank 0 says whether there is one: the others might not see it yet
        if self.checkpoint is not None and self.group.broadcast(self.checkpoint.exists()):
            self.now = checkpoints.restore(self.checkpoint, self.trainer, self.data)
        begun = torch.tensor([self.now.epoch, self.now.step])
        self.trainer.check_ranks(begun, 0)
        self.group.wait_for_all()  # the clocks of all ranks begin here
        self.trainer.watch.start()

    def go(self, progress: bool) -> None:
        """Train to the end."""
        hidden = not progress or self.group.rank > 0
        options = {"total": self.steps, "initial": self.now.step, "desc": self.settings.method}
        with tqdm(**options, disable=hidden, leave=False) as bar:
            while self.now.epoch < self.settings.epochs:
                self._epoch(bar)
                if self.checkpoint is not None:
                    checkpoints.save(self.checkpoint, self.trainer, self.data, self.now)

    def record(self) -> Record:
        """Put together what the ranks have."""
        now, trainer = self.now, self.trainer
        timeline = trainer.watch.timeline()
        learned = {int(n): torch.cat(parts) for n, parts in now.feedback_losses.items() if parts}
        state = {name: value.detach().clone() for name, value in trainer.net.state_dict().items()}
        return Record(
            losses=torch.tensor(now.losses),
            feedback_losses=learned,
            history=pd.DataFrame(now.rows),
            angles=pd.DataFrame(now.angles),
            loads=trainer.loads,
            owners=list(trainer.owners),
            seconds=self._seconds(),
            timeline=merged(timeline) if self.group.ranks > 1 else timeline,
            test_correct=correct(trainer, self.data.test),
            state=state,
            digest=digest(trainer.net),
        )

    def _epoch(self, bar: tqdm) -> None:
        now, trainer = self.now, self.trainer
        kinds = ("feedback", "receive")
        before = {kind: trainer.watch.total(kind) for kind in kinds}
        made = trainer.train(self._paced(bar), now.step)
        spent = {f"{kind}_s": trainer.watch.total(kind) - before[kind] for kind in kinds}
        self._note(made)
        row = {
            "epoch": now.epoch,
            "step": now.step,
            "loss": sum(made.losses) / len(made.losses),
            "val_acc": float(correct(trainer, self.data.validation).mean()),
            "train_s": made.seconds,
        }
        now.rows.append(row | spent)
        bar.set_postfix(loss=f"{row['loss']:.3f}", acc=f"{row['val_acc']:.3f}")
        now.epoch += 1
        if self.settings.compare_every and now.epoch % self.settings.compare_every == 0:
            found = gradient_angles(trainer, self.data.validation)
            now.angles += [each | {"epoch": now.epoch} for each in found]

    def _note(self, made: Trained) -> None:
        self.now.step += len(made.losses)
        self.now.losses += made.losses
        for n, losses in made.feedback_losses.items():
            self.now.feedback_losses.setdefault(str(n), []).append(losses)

    def _paced(self, bar: tqdm) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield an epoch's batches, and set each step's rate before it."""
        epoch, own = self.now.epoch, self.settings
        for step, batch in enumerate(self._batches(epoch), self.now.step):
            self.trainer.lr = rate(own.schedule, own.lr, step, epoch, self.steps)
            yield batch
            bar.update()

    def _batches(self, epoch: int) -> Any:
        own = self.settings
        return self.data.train.batches(own.batch, seed=own.seed, epoch=epoch, augment=own.augment)

    def _seconds(self) -> pd.DataFrame:
        """Return all ranks' seconds, a row a kind and block."""
        own = [
            {"rank": self.group.rank, "kind": kind, "block": block, "seconds": seconds}
            for (kind, block), seconds in self.trainer.watch.seconds.items()
        ]
        return pd.DataFrame([row for rows in self.group.gather(own) for row in rows])
