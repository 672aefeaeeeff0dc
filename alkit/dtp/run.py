"""Training with target propagation, in this process or as one of the ranks of a group."""

import hashlib
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor, nn
from tqdm.auto import tqdm

from alkit.data.arguments import Brief
from alkit.data.parts import DataSet, Part
from alkit.dtp.assign import longest_first, measured_loads
from alkit.dtp.compare import compare
from alkit.dtp.crew import Crew
from alkit.dtp.feedback import NotFinite
from alkit.dtp.networks import Net
from alkit.dtp.rates import rate
from alkit.dtp.settings import Settings
from alkit.dtp.step import Stepper
from alkit.engine import checkpoint as checkpoints
from alkit.engine.caller import CallerState
from alkit.engine.heartbeat import beat
from alkit.engine.local import operator_threads
from alkit.engine.ranks import merged
from alkit.schedule.timeline import Timeline

__all__ = ["Record", "digest", "run"]

COMPARED = 256  # validation samples at most, for gradients beside backprop's


@dataclass(frozen=True, repr=False)
class Record(Brief):
    """What training left, the same on all ranks.

    Attributes:
        losses: (steps,), cross-entropy of the output.
        feedback_losses: by block, (steps, K_n).
        history: a row an epoch: loss, val_acc, train_s, and of rank 0 the seconds in loops
            (feedback_s) and waiting for others' (receive_s).
        angles: rows of `alkit.dtp.compare`, by epoch.
        loads: seconds of each loop for a batch, as assigned by; owners: each loop's rank.
        seconds: by rank, kind and block, of all steps of this call.
        timeline: of its first steps.
        test_correct: float (N,) on the test part after the last step.
        state: of the network; digest: SHA-256 of all its bits.
    """

    losses: Tensor
    feedback_losses: dict[int, Tensor]
    history: pd.DataFrame
    angles: pd.DataFrame
    loads: list[float]
    owners: list[int]
    seconds: pd.DataFrame
    timeline: Timeline
    test_correct: Tensor
    state: dict[str, Tensor]
    digest: str

    @property
    def test_acc(self) -> float:
        """Accuracy on the test part, 0 to 1."""
        return float(self.test_correct.mean())


@dataclass
class _Progress:
    """What a checkpoint keeps beside weights and momenta."""

    epoch: int = 0
    step: int = 0
    losses: list[float] = field(default_factory=list)
    feedback_losses: dict[str, list[Tensor]] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    angles: list[dict[str, Any]] = field(default_factory=list)


def digest(net: nn.Module) -> str:
    """Return the SHA-256 of all weights, forward and feedback."""
    made = hashlib.sha256()
    for tensor in net.state_dict().values():
        made.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return made.hexdigest()


def run(
    net: Net,
    data: DataSet,
    settings: Settings,
    *,
    owners: list[int] | None = None,
    checkpoint: Path | None = None,
    progress: bool = True,
) -> Record:
    """Train on this process, or as one of the ranks of a group.

    Args:
        owners: rank of each loop; default the longest first, by measured seconds.
        checkpoint: written after each epoch; training goes on from it if it is there.
    Raises:
        ValueError: settings that don't fit the network, or another run's checkpoint.
        NotFinite: a loss is not.
        RanksDiffer: ranks have different weights or batches.
    """
    with operator_threads(settings.threads), CallerState.here().training():
        loop = _Loop(net, data, settings, owners)
        loop.begin(checkpoint)
        loop.go(checkpoint, progress=progress and loop.crew.rank == 0)
        return loop.record()


class _Loop:
    """The state of one run."""

    def __init__(
        self, net: Net, data: DataSet, settings: Settings, owners: list[int] | None
    ) -> None:
        self.net, self.data, self.settings = net, data, settings
        self.crew = Crew()
        self.now = _Progress()
        self.per_epoch = len(self._batches(0))
        if settings.symmetric:
            net.make_symmetric()
        sample = next(iter(self._batches(0)))[0]
        self.stepper = Stepper(net, settings, self.crew, sample)
        self.loads, self.stepper.owners = self._assigned(owners, sample)

    def begin(self, checkpoint: Path | None) -> None:
        """Make sure that all ranks begin alike, or go on from a checkpoint."""
        # rank 0 says whether there is one: the others might not see it yet
        if checkpoint is not None and self.crew.told(checkpoint.exists()):
            self._restore(checkpoint)
        self.crew.check_equal(self.net, torch.tensor([self.now.epoch, self.now.step]), 0)
        if self.crew.ranks > 1:
            dist.barrier()  # the clocks of all ranks begin here
        self.stepper.zero_s = time.perf_counter()

    def go(self, checkpoint: Path | None, *, progress: bool) -> None:
        """Train to the end."""
        settings, now = self.settings, self.now
        steps = settings.epochs * self.per_epoch
        bar = tqdm(total=steps, initial=now.step, desc=settings.method, disable=not progress,
                   leave=False)  # fmt: skip
        with bar:
            while now.epoch < settings.epochs:
                self._epoch(steps, bar)
                if checkpoint is not None:
                    self._save(checkpoint)

    def record(self) -> Record:
        """Put together what the ranks have."""
        now, stepper = self.now, self.stepper
        own = [
            {"rank": self.crew.rank, "kind": kind, "block": block, "seconds": seconds}
            for (kind, block), seconds in stepper.seconds.items()
        ]
        rows = [row for rank in range(self.crew.ranks) for row in self.crew.told(own, rank)]
        timeline = Timeline(tuple(stepper.intervals), (f"worker {self.crew.rank}",))
        learned = {int(n): torch.cat(parts) for n, parts in now.feedback_losses.items() if parts}
        return Record(
            torch.tensor(now.losses), learned, pd.DataFrame(now.rows), pd.DataFrame(now.angles),
            self.loads, list(stepper.owners), pd.DataFrame(rows),
            merged(timeline) if self.crew.ranks > 1 else timeline, self._correct(self.data.test),
            {name: value.detach().clone() for name, value in self.net.state_dict().items()},
            digest(self.net),
        )  # fmt: skip

    # ---- an epoch

    def _epoch(self, steps: int, bar: tqdm) -> None:
        now, stepper, settings = self.now, self.stepper, self.settings
        before, start_s = dict(stepper.seconds), time.perf_counter()
        losses = []
        for x, y_onehot in self._batches(now.epoch):
            lr = rate(settings, now.step, now.epoch, steps)
            losses.append(float(stepper.step(x, y_onehot, now.step, lr)))
            now.step += 1
            bar.update()
            if now.step % settings.check_every == 0:
                self.crew.check_equal(self.net, y_onehot, now.step)
        train_s = time.perf_counter() - start_s
        self.crew.check_equal(self.net, y_onehot, now.step)
        self._check_finite()
        now.losses += losses
        self._gather()
        spent = {
            f"{name}_s": sum(s - before.get(key, 0.0)
                             for key, s in stepper.seconds.items() if key[0] == name)
            for name in ("feedback", "receive")
        }  # fmt: skip
        now.rows.append({
            "epoch": now.epoch, "step": now.step, "loss": sum(losses) / len(losses),
            "val_acc": float(self._correct(self.data.validation).mean()), "train_s": train_s,
            **spent,
        })  # fmt: skip
        bar.set_postfix(loss=f"{now.rows[-1]['loss']:.3f}", acc=f"{now.rows[-1]['val_acc']:.3f}")
        now.epoch += 1
        if settings.compare_every and now.epoch % settings.compare_every == 0:
            self._compare()

    def _check_finite(self) -> None:
        for name, value in self.net.state_dict().items():
            if not torch.isfinite(value).all():
                raise NotFinite(f"{name} is not finite after step {self.now.step}: lower lr")

    def _batches(self, epoch: int) -> Any:
        own = self.settings
        return self.data.train.batches(own.batch, seed=own.seed, epoch=epoch, augment=own.augment)

    def _compare(self) -> None:
        if self.stepper.feedback is None:
            return
        x, y_onehot = next(iter(self.data.validation.batches(COMPARED, shuffle=False)))
        made = compare(
            self.net, x, y_onehot, self.settings.compare_beta, feedback=self.stepper.feedback
        )
        self.now.angles += made.assign(epoch=self.now.epoch).to_dict("records")

    def _gather(self) -> None:
        """Hand the epoch's feedback losses from their owners to all."""
        stepper = self.stepper
        for n, owner in zip(stepper.loops, stepper.owners, strict=True):
            own = stepper.feedback_losses[n]
            told = self.crew.told(torch.stack(own) if own else None, owner)
            self.now.feedback_losses.setdefault(str(n), []).append(told)
            stepper.feedback_losses[n] = []

    def _correct(self, part: Part) -> Tensor:
        """Return 1 for each sample that is right; the ranks share the work."""
        found = torch.zeros(len(part))
        size = 256
        for at, (x, y_onehot) in enumerate(part.batches(size, shuffle=False)):
            if at % self.crew.ranks == self.crew.rank:
                beat("evaluation")
                right = self.net.predict(x).argmax(1) == y_onehot.argmax(1)
                found[at * size : at * size + len(x)] = right.float()
        return self.crew.total(found)

    # ---- who runs what

    def _assigned(self, owners: list[int] | None, sample: Tensor) -> tuple[list[float], list[int]]:
        feedback, ranks = self.stepper.feedback, self.crew.ranks
        if feedback is None:
            return [], []
        if owners is not None:
            if len(owners) != len(feedback.loops) or not set(owners) <= set(range(ranks)):
                names = ", ".join(self.net.label(n) for n in feedback.loops)
                raise ValueError(
                    f"owners is {owners}: give the rank, 0 to {ranks - 1}, of each of"
                    f" {len(feedback.loops)} loops ({names})"
                )
            return [], owners
        loads = None
        if self.crew.rank == 0:
            loads = measured_loads(feedback, self.net.locally(sample))
        loads = self.crew.told(loads)
        return loads, longest_first(loads, ranks)

    # ---- checkpoints

    def _save(self, path: Path) -> None:
        """Write all that training changes; momenta come from their owners."""
        stepper = self.stepper
        momenta = {
            str(n): self.crew.told(stepper.feedback.optimizers[n].state_dict(), owner)
            for n, owner in zip(stepper.loops, stepper.owners, strict=True)
        }
        if self.crew.rank == 0:
            checkpoints.save(path, {
                "net": dict(self.net.state_dict()), "optimizer": stepper.optimizer.state_dict(),
                "feedback": momenta, "settings": self._identity(),
                "progress": {f.name: getattr(self.now, f.name) for f in fields(self.now)},
            })  # fmt: skip

    def _identity(self) -> dict[str, Any]:
        """Return what makes a run another one."""
        own = {"network": str(self.net.blocks), "data": self.data.name}
        return self.settings.plain() | own | {"samples": len(self.data.train)}

    def _restore(self, path: Path) -> None:
        saved = checkpoints.load(path)
        before = saved.get("settings", {})
        for name, value in self._identity().items():
            if before.get(name) != value:
                raise ValueError(
                    f"{path} was trained with {name} = {before.get(name)!r}, not {value!r}: give"
                    " another path, or delete it"
                )
        self.net.load_state_dict(saved["net"])
        self.stepper.optimizer.load_state_dict(saved["optimizer"])
        for n, state in saved["feedback"].items():
            self.stepper.feedback.optimizers[int(n)].load_state_dict(state)
        self.now = _Progress(**saved["progress"])
