"""One call of `alkit.fit`: its plan for a method, the trainer for the loop, and the record.

    Plan ──► the method's fit: makes a Trainer ──► the loop over epochs ──► Record

A trainer knows one method and nothing of data sets, files or progress bars.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import torch
from torch import Tensor

from alkit.base.arguments import Brief, check_whole, given
from alkit.data.given import ARRAYS, Source, as_pair, as_source
from alkit.data.parts import DataSet
from alkit.engine import checkpoint as checkpoints
from alkit.engine.device import Names, devices_named, spread
from alkit.engine.evaluate import Judged, Metrics, judge
from alkit.engine.launch import launch
from alkit.engine.messages import Group
from alkit.engine.rates import Scheduler
from alkit.schedule.timeline import Timeline

Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """One call of `alkit.fit`, whose docstring explains the fields that are missing here.

    Attributes:
        model: blocks, or the method's own model.
        sample: the first batch (x, y); None with a method's own model.
        width, classes: scores of a sample that the last block gives, and that there are to be.
    """

    data: DataSet
    model: Any = None
    method: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[[Any, Tensor], Tensor] | None = None
    optimizer: Callable[..., torch.optim.Optimizer] | None = None
    lr: float | Mapping[str, float] | None = None
    scheduler: Scheduler | None = None
    epochs: int = 1
    batch_size: int = 32
    device: Names | None = None
    workers: int | None = None
    threads: int = 1
    ranks: int = 1
    checkpoint: str | Path | None = None
    metrics: Metrics | None = None
    callbacks: Sequence[Callable[[dict[str, Any], Any], Any]] = ()
    seed: int = 0
    progress: bool = True
    sample: tuple[Any, Any] | None = None
    width: int | None = None
    classes: int | None = None

    def __post_init__(self) -> None:
        check_whole(epochs=self.epochs, batch_size=self.batch_size)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise TypeError(f"seed is {given(self.seed)}: it must be a whole number")

    @property
    def crew(self) -> int:
        """How many ranks train together: those to start, or those of the group."""
        return max(self.ranks, Group().ranks)

    @property
    def on_ranks(self) -> bool:
        """Whether several ranks train together."""
        return self.crew > 1

    @property
    def executor(self) -> str:
        """The executor of the schedule."""
        return "ranks" if self.on_ranks else "threads"

    @property
    def own_device(self) -> Names | None:
        """The device of this process: a rank has one of the given devices."""
        if self.device is None or not self.on_ranks:
            return self.device
        named = devices_named(self.device, every=True)  # they go round the ranks of a machine
        return named[int(os.environ.get("LOCAL_RANK", "0")) % len(named)]

    @property
    def one_lr(self) -> float | None:
        """The learning rate of a method that has only one."""
        if isinstance(self.lr, Mapping):
            raise ValueError(f"lr is {given(self.lr)}: {self.method} takes one number")
        return self.lr

    def refuse(self, *names: str, why: str) -> None:
        """Refuse arguments that a method can't take, where they were given."""
        defaults = {each.name: each.default for each in fields(Plan)}
        for name in names:
            if (value := getattr(self, name)) is not defaults[name] and value != defaults[name]:
                raise ValueError(f"{name} is {given(value)}, which {self.method} can't take: {why}")


@dataclass(frozen=True, repr=False)
class Trained(Brief):
    """The results of an epoch."""

    losses: Tensor  # (batches, ...)
    timeline: Timeline  # of all workers
    seconds: float


class Trainer(Protocol):
    """The trainer that a method gives to the loop; methods that it lacks are as here."""

    model: Any

    def batches(self, plan: Any, train: Source, epoch: int) -> Iterable[tuple[Any, Any]]:
        """Return the epoch's batches, by a `Plan`."""
        return train.batches(plan.batch_size, seed=plan.seed, epoch=epoch)

    def train(self, batches: Iterable[tuple[Any, Tensor]]) -> Trained:
        """Train once on every batch."""

    @property
    def loss(self) -> Callable[[Any, Tensor], Tensor]:
        """The loss of (scores, y) that the scores are trained by, as it was given."""

    def judge(self, part: Source, metrics: Metrics | None) -> Judged:
        """Return the results of the model on a part."""
        return judge(self.model, part, loss=self.loss, metrics=metrics)

    def row(self, trained: Any) -> Row:
        """Return the columns of the history that this method has a word on."""
        return {}

    def gather(self) -> None:
        """Bring the model's parts together, where ranks hold some of it; all ranks call it."""
        return

    def named_optimizers(self) -> dict[str, torch.optim.Optimizer | None]:
        """Return the optimisers whose rates follow the plan."""
        return self.model.named_optimizers()

    def state(self) -> dict[str, Any]:
        """Return all that training changes, "model" and "optimizers" in it; all ranks call it."""
        return checkpoints.snapshot(self.model)

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from a state that `state` returned."""
        checkpoints.restore(self.model, saved)


@dataclass(frozen=True, repr=False)
class Record(Brief):
    """The results of a run.

    Attributes:
        model: trained; it has the weights of its best epoch.
        history: a row an epoch.
        losses: of the last epoch, (batches, stages, parts); of methods that keep one loss a step,
            of all steps, (steps, 1, 1).
        timeline: of the last epoch.
        test_correct: float (N,), which samples of the test part are right; None where targets are
            no classes.
        test_scores: float (N, C), of the test part, where a sample has a row of them.
        metrics: on the test part "loss", of classes "accuracy", and your own.
        best_epoch: from 1, by validation accuracy (or loss), the first of equal ones; the last one
            without a validation part; 0 if the first epoch did not end.
        stopped_early: whether a callback ended it.
        seconds: of all epochs of this call.
        settings: of the call.
        details: the record of the method.
        made: how the model was made, see `alkit.save`.
        classes: their names, where the data have some.
    """

    model: Any
    history: pd.DataFrame
    losses: Tensor | None = None
    timeline: Timeline | None = None
    test_correct: Tensor | None = None
    test_scores: Tensor | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    best_epoch: int = 0
    stopped_early: bool = False
    seconds: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    details: Any = None
    made: Mapping[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] = ()

    @property
    def test_acc(self) -> float | None:
        """Share of the test part that is right, 0 to 1; None without one."""
        return None if self.test_correct is None else self.test_correct.nanmean().item()

    def predict(self, x: Any) -> Tensor:
        """Return scores (B, C) of inputs, tensors or arrays, or of all that a loader or set has."""
        if isinstance(x, (Tensor, tuple, Mapping, *ARRAYS)):
            return self.model.predict(as_pair((x, ()), 0)[0])
        batches = as_source(x).batches(512, shuffle=False)
        return torch.cat([self.model.predict(own).cpu() for own, _ in batches])


def meet(plan: Plan, model: Any) -> Group:
    """Return the ranks that run this, or a single process, once they are known to begin alike."""
    group = Group()
    advice = "every rank makes the model itself, so begin with torch.manual_seed(0) on all"
    group.check_equal(model.state_dict(), when="before the first step ", advice=advice)
    return group


def fit_on_ranks(fit: Callable[[Any, Plan], Record], model: Any, plan: Plan) -> Record:
    """Fit in this process, or start ranks, fit on all, and bring back the trained model."""
    joined = Group().ranks
    if joined > 1 and plan.ranks not in (1, joined):
        said = f"ranks is {plan.ranks}, and this process is one of {joined} ranks already"
        raise ValueError(f"{said}: leave it out to train on these")
    if plan.ranks == 1 or joined > 1:
        return fit(model, plan)
    devices_named(plan.device or "cpu")  # an unknown one is refused before ranks start
    run = partial(_on_rank, fit, model, plan, _hooks(model))
    snapshot, record = launch(run, ranks=plan.ranks, threads=plan.threads)[0]
    checkpoints.restore(model, snapshot)
    return replace(record, model=model)


def _on_rank(
    fit: Callable[[Any, Plan], Record], model: Any, plan: Plan, hooks: list[dict[int, Any]]
) -> tuple[dict[str, Any], Record] | None:
    """Run one rank; only rank 0's record travels, and its model as weights."""
    for mine, others in zip(_hooks(model), hooks, strict=True):
        mine.update(others)
    record = fit(model, plan)
    if torch.distributed.get_rank() > 0:
        return None
    return checkpoints.snapshot(spread(record.model, "cpu")), replace(record, model=None)


def _hooks(model: Any) -> list[dict[int, Any]]:
    """Return the hooks of the optimisers of a model, which pickling loses."""
    named = model.named_optimizers() if hasattr(model, "named_optimizers") else {}
    kinds = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
    return [getattr(each, kind) for each in named.values() if each is not None for kind in kinds]
