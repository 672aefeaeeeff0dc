"""What a call of `alkit.fit` asks of a method, checked against what that method can do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from alkit.data.arguments import given
from alkit.data.given import Splits
from alkit.engine import checkpoint as checkpoints
from alkit.engine.compiled import Compile
from alkit.engine.device import Names, spread
from alkit.engine.evaluate import Metrics
from alkit.engine.group import Group
from alkit.engine.launch import launch
from alkit.engine.loop import Plan, train_epochs
from alkit.engine.rank_device import backend_for, own_device
from alkit.engine.record import Record
from alkit.engine.trainer import Trainer

PATIENCE_S = 600.0  # for a task, which may compile or be of a large network on one thread
SAME = ("epochs", "batch_size", "seed", "threads")  # mean the same in every method


@dataclass(frozen=True)
class Request:
    """One call of `alkit.fit`; see there for what the names mean."""

    model: Any
    data: Splits
    method: str
    plan: Plan
    loss: Callable[[Any, Tensor], Tensor] | None = None
    optimizer: Callable[..., torch.optim.Optimizer] | None = None
    lr: float | Mapping[str, float] | None = None
    executor: str | None = None
    ranks: int = 1
    workers: int | None = None
    threads: int = 1
    cuts: list[int] | None = None
    balanced_cuts: bool = False
    micro: int = 1
    device: Names | None = None
    compile: Compile = False
    metrics: Metrics | None = None
    checkpoint: str | Path | None = None
    resume: str = "same"
    progress: bool = True
    settings: Any = None
    sample: tuple[Any, Any] | None = None  # two samples (x, y)
    width: int | None = None  # scores of a sample that the last block gives
    classes: int | None = None  # scores that there are to be
    changes: Mapping[str, Any] = field(default_factory=dict)
    said: frozenset[str] = frozenset()  # options that were given, though they be the default

    def refuse(self, *names: str, why: str) -> None:
        """Refuse options that the method can't take: none is ignored.

        Args:
            names: of attributes, or of those of the plan.
            why: ends the message.
        Raises:
            ValueError: names the first that was given.
        """
        defaults = {each.name: each.default for kind in (Request, Plan) for each in fields(kind)}
        for name in names:
            value = getattr(self if hasattr(self, name) else self.plan, name)
            if value is not defaults[name] and value != defaults[name]:
                raise ValueError(f"{name} is {given(value)}, which {self.method} can't take: {why}")

    def no_changes(self, what: str) -> None:
        """Refuse settings that nothing reads.

        Raises:
            TypeError: names them, and `what` takes none.
        """
        unknown = [*self.changes, *(["settings"] if self.settings is not None else [])]
        if unknown:
            raise TypeError(f"unknown settings {', '.join(unknown)}: {what}")

    def given_options(self, **names: str) -> dict[str, Any]:
        """Return those of the options that hold, under a method's own names for them.

        Epochs, batch size, seed and threads are as this call has them, whatever a method's own
        defaults are; beside `settings`, what is left at its default is theirs.
        """
        defaults = {each.name: each.default for kind in (Request, Plan) for each in fields(kind)}
        found = {}
        for name, own in names.items():
            value = getattr(self if hasattr(self, name) else self.plan, name)
            if (
                value != defaults[name]
                or name in self.said
                or (self.settings is None and name in SAME)
            ):
                found[own] = value
        return found

    def train(
        self, trainer: Trainer, group: Group, *, plan: Plan | None = None, **options: Any
    ) -> Record:
        """Run the one loop as it was asked for.

        Args:
            plan: in place of this one's, where a method's own settings say more.
            options: identity, choose, see `alkit.engine.loop.train_epochs`.
        """
        return train_epochs(
            trainer,
            self.data,
            plan or self.plan,
            checkpoint=self.checkpoint,
            anyway=self.resume == "anyway",
            progress=self.progress,
            group=group,
            metrics=self.metrics,
            **options,
        )

    @property
    def own_device(self) -> Names | None:
        """Where this process trains: a rank has one device of those that were asked for."""
        return own_device(self.device) if self.on_ranks and self.device is not None else self.device

    @property
    def on_ranks(self) -> bool:
        """Whether ranks train together, to be started or as they are."""
        return self.ranks > 1 or self.executor == "ranks"

    @property
    def group(self) -> Group:
        """The ranks that this process is one of, with executor "ranks"; else it is alone.

        Raises:
            RuntimeError: this process is no rank; says how to start some.
        """
        return Group("ranks" if self.executor == "ranks" and self.ranks == 1 else "single")

    @property
    def crew(self) -> int:
        """How many ranks train together: those to start, or those of the group."""
        return self.ranks if self.ranks > 1 else self.group.ranks

    @property
    def one_lr(self) -> float | None:
        """The learning rate, for methods that have one.

        Raises:
            ValueError: several were given.
        """
        if isinstance(self.lr, Mapping):
            raise ValueError(f"lr is {given(self.lr)}: {self.method} takes one number")
        return self.lr


def meet(executor: str, model: Any) -> Group:
    """Return the ranks that run this, or a process alone, once it is sure that they begin alike.

    Raises:
        RanksDiffer: they have made different models.
    """
    group = Group(executor)
    advice = "every rank makes the model itself, so begin with torch.manual_seed(0) on all"
    group.check_equal(model.state_dict(), when="before the first step ", advice=advice)
    return group


def fit_on_ranks(fit: Callable[[Any, Request], Record], model: Any, request: Request) -> Record:
    """Start ranks, fit on all of them, and bring what was trained back to where the model is.

    Raises:
        ValueError: a device that this machine lacks.
        RankFailed: a rank failed; names it, and none is left running.
    """
    backend = backend_for(request.device, request.ranks)
    options: dict[str, Any] = {
        "ranks": request.ranks,
        "threads": request.threads,
        "backend": backend,
        "patience_s": PATIENCE_S,
    }
    results = launch(_on_rank, fit, model, request, **options)
    snapshot, values = results[0]
    checkpoints.restore(model, snapshot)
    return Record(**values | {"model": model})


def _on_rank(
    fit: Callable[[Any, Request], Record], model: Any, request: Request
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Run one rank; only rank 0's record travels, and its model as weights."""
    record = fit(model, request)
    if torch.distributed.get_rank() > 0:
        return None
    values = {each.name: getattr(record, each.name) for each in fields(record)}
    return checkpoints.snapshot(spread(record.model, "cpu")), values | {"model": None}
