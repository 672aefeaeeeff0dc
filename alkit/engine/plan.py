"""What one call of `alkit.fit` asks of a method, once it has been looked at."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from alkit.base.arguments import check_whole, given
from alkit.data.given import Source
from alkit.data.parts import DataSet
from alkit.engine import checkpoint as checkpoints
from alkit.engine.device import Names, devices_named, own_device, spread
from alkit.engine.evaluate import Metrics
from alkit.engine.launch import launch
from alkit.engine.messages import Group
from alkit.engine.rates import Scheduler
from alkit.engine.trainer import Record

HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"  # which pickling loses


@dataclass(frozen=True)
class Plan:
    """One call of `alkit.fit`, whose docstring explains what is not said here.

    Attributes:
        model: blocks, or the method's own model.
        sample: two samples (x, y); None with a method's own model.
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

    def batches(self, train: Source, epoch: int) -> Iterable[tuple[Any, Tensor]]:
        """Return an epoch's batches."""
        return train.batches(self.batch_size, seed=self.seed, epoch=epoch)

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
        """What runs the schedule."""
        return "ranks" if self.on_ranks else "threads"

    @property
    def own_device(self) -> Names | None:
        """Where this process trains: a rank has one device of those that were given."""
        return own_device(self.device) if self.on_ranks and self.device is not None else self.device

    @property
    def one_lr(self) -> float | None:
        """The learning rate, for methods that have one."""
        if isinstance(self.lr, Mapping):
            raise ValueError(f"lr is {given(self.lr)}: {self.method} takes one number")
        return self.lr

    def refuse(self, *names: str, why: str) -> None:
        """Refuse what a method can't take, where it was given."""
        defaults = {each.name: each.default for each in fields(Plan)}
        for name in names:
            if (value := getattr(self, name)) is not defaults[name] and value != defaults[name]:
                raise ValueError(f"{name} is {given(value)}, which {self.method} can't take: {why}")


def meet(executor: str, model: Any) -> Group:
    """Return the ranks that run this, or a process alone, once it is sure that they begin alike."""
    group = Group(executor)
    advice = "every rank makes the model itself, so begin with torch.manual_seed(0) on all"
    group.check_equal(model.state_dict(), when="before the first step ", advice=advice)
    return group


def fit_on_ranks(fit: Callable[[Any, Plan], Record], model: Any, plan: Plan) -> Record:
    """Fit in this process, or start ranks, fit on all, and bring back what they have trained."""
    joined = Group().ranks
    if joined > 1 and plan.ranks not in (1, joined):
        raise ValueError(
            f"ranks is {plan.ranks}, and this process is one of {joined} ranks already: leave it"
            " out to train on these"
        )
    if plan.ranks == 1 or joined > 1:
        return fit(model, plan)
    devices_named(plan.device or "cpu")  # an unknown one is refused before ranks start
    hooks = [dict(getattr(each, kind)) for each in _optimizers(model) for kind in HOOKS]
    crew = launch(_on_rank, fit, model, plan, hooks, ranks=plan.ranks, threads=plan.threads)
    snapshot, record = crew[0]
    checkpoints.restore(model, snapshot)
    return replace(record, model=model)


def _on_rank(
    fit: Callable[[Any, Plan], Record], model: Any, plan: Plan, hooks: list[dict[int, Any]]
) -> tuple[dict[str, Any], Record] | None:
    """Run one rank; only rank 0's record travels, and its model as weights."""
    kinds = [getattr(each, kind) for each in _optimizers(model) for kind in HOOKS]
    for mine, others in zip(kinds, hooks, strict=True):
        mine.update(others)
    record = fit(model, plan)
    if torch.distributed.get_rank() > 0:
        return None
    return checkpoints.snapshot(spread(record.model, "cpu")), replace(record, model=None)


def _optimizers(model: Any) -> list[torch.optim.Optimizer]:
    named = model.named_optimizers() if hasattr(model, "named_optimizers") else {}
    return [each for each in named.values() if each is not None]
