"""Split and federated learning behind `alkit.fit`: devices and server on threads."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from alkit.data.arguments import as_whole, given
from alkit.data.given import Loader, in_memory
from alkit.data.labels import are_numbers
from alkit.data.parts import Part
from alkit.engine.behaviour import Rows, text_of
from alkit.engine.checkpoint import MOVED
from alkit.engine.device import devices_named, place
from alkit.engine.evaluate import Judged, judge
from alkit.engine.modes import evaluating
from alkit.engine.optimizers import made, told
from alkit.engine.plan import Plan
from alkit.engine.rates import EachBatch, scheduled
from alkit.engine.record import Record
from alkit.models.blocks import sending_one
from alkit.split.data import normal_of
from alkit.split.deal import deal
from alkit.split.halves import Optimizer, factory_of
from alkit.split.kept import Kept
from alkit.split.methods import TABLE
from alkit.split.settings import Training
from alkit.split.train import train


@dataclass(frozen=True)
class Face:
    """What `alkit.fit` takes by name for these methods.

    Attributes:
        cuts: one: how many units a device has.
        micro: micro-batches of a batch, of pipelearn.
        aggregate_every: iterations; -1 once an epoch, 0 once at the end.
        momentum: of the SGD that trains without `optimizer=`.
        augment: "none" or "weak" (crop and flip).
        drop_last: each device leaves a last, smaller batch of an epoch out.
    """

    cuts: Sequence[int] | None = None
    micro: int = 1
    aggregate_every: int = -1
    momentum: float = 0.9
    augment: str = "none"
    drop_last: bool = False


def settings_of(method: str) -> type[Face]:
    """Return the dataclass of a method's settings."""
    return Face


SHARED = "devices and server share one factor of the rate by round: give another scheduler"


class _Sequence(nn.Sequential):
    """The units in a row, as a model that predicts."""

    @torch.no_grad()
    def predict(self, x: Any) -> Tensor:
        """Return the scores in evaluation mode; the mode is restored."""
        with evaluating(self):
            return self(place(x, self))


def model_of(plan: Plan) -> _Sequence:
    """Return the blocks as a model that predicts."""
    return _Sequence(*sending_one(plan.model))


def fit(plan: Plan) -> Record:
    """Run what was asked: blocks, cut once; samples are dealt among `workers` devices, or 2.

    Settings are those of `alkit.split.Settings`. The blocks end with the averaged weights of the
    last round.
    """
    plan.refuse("loss", why="its tails compare classes by cross-entropy")
    plan.refuse("ranks", why="its parties are no ranks: give workers=, or start `alkit split`")
    plan.refuse("callbacks", why="rounds are agreed on before the first")
    model = model_of(plan)
    blocks = list(model)
    cut = _cut(plan, len(blocks))
    x, y = _samples(plan)
    train_part = plan.data.train
    changes: dict[str, Any] = {n: getattr(plan, n) for n in ("epochs", "seed", "threads")}
    changes |= {"batch": plan.batch_size} | dict(plan.settings)
    changes.pop("cuts", None)
    if plan.optimizer is not None and "momentum" in changes:
        raise ValueError(
            "momentum is for the SGD that trains without optimizer=: leave it out, and give it to"
            " your own: lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9)"
        )
    if isinstance(train_part, Loader) and train_part.drops:
        changes["drop_last"] = True  # as the loader says
    if plan.one_lr is not None:
        changes["lr"] = plan.one_lr
    if plan.scheduler is not None:
        changes["factors"] = _factors(blocks, plan, changes)
    if plan.device is not None:
        model.to(devices_named(plan.device)[-1])  # the tail's, where it is tested
    record = train(
        blocks,
        [(x[rows], y[rows]) for rows in deal(y, plan.workers or 2, seed=plan.seed)],
        cut=cut,
        method=plan.method,
        device=plan.device,
        optimizer=plan.optimizer,
        path=None if plan.checkpoint is None else Path(plan.checkpoint),
        kept=None if plan.checkpoint is None else _kept(blocks, plan, changes),
        normal=normal_of(train_part) if isinstance(train_part, Part) else None,
        scaled=isinstance(train_part, Part),
        progress=plan.progress,
        evaluate=None if plan.data.validation is None else _scorer(blocks, plan),
        **changes,
    )
    nn.ModuleList(blocks).load_state_dict(record.state)
    by = "epoch" if changes.get("aggregate_every", -1) == -1 else "round"
    rows = [
        {by: at, "loss": own.mean_loss(), "samples": record.samples[at - 1]}
        | Judged(values=own.scores).row("val")
        | {"train_s": own.seconds}
        for at, own in enumerate(record.rounds, 1)
    ]
    tested = Judged() if plan.data.test is None else _judge(model, plan.data.test, plan)
    losses = torch.cat([own.flatten() for own in record.losses.values()])
    return Record(
        model=model,
        history=pd.DataFrame(rows),
        losses=losses.view(-1, 1, 1),
        timeline=record.timeline,
        test_correct=tested.correct,
        metrics=tested.values,
        best_epoch=len(rows),
        seconds=sum(own.seconds for own in record.rounds),
        settings=changes,
        details=record,
    )


def _factors(blocks: Sequence[nn.Module], plan: Plan, changes: Mapping[str, Any]) -> list[float]:
    """Return what a scheduler makes of the rates by round, which is what all parties share.

    Raises:
        ValueError: it does more than multiply all rates by a number that depends on the epoch.
    """
    if isinstance(plan.scheduler, EachBatch):
        raise ValueError("scheduler= steps by batches, and all parties share rounds: by epochs")
    if changes.get("aggregate_every", -1) != -1:
        raise ValueError("scheduler= goes by epochs: leave aggregate_every at -1, once an epoch")
    own = made(_maker(plan, changes), copy.deepcopy(nn.ModuleList(blocks)).named_parameters())
    before = [dict(group) for group in getattr(own, "param_groups", ())]
    stub = SimpleNamespace(named_optimizers=lambda: {"all": own})
    found = []
    with scheduled(stub, plan.scheduler) as rates:
        if any(isinstance(each, ReduceLROnPlateau) for each in rates.made.values()):
            raise ValueError(f"ReduceLROnPlateau looks at results, and {SHARED}")
        for _ in range(plan.epochs):
            rates.start_epoch()
            found.append(_factor(before, getattr(own, "param_groups", ())))
            rates.end_epoch({})
    return found


def _maker(plan: Plan, changes: Mapping[str, Any]) -> Optimizer:
    """Return what makes the optimisers of this run."""
    about = {name: changes[name] for name in ("lr", "momentum") if name in changes}
    return factory_of(Training(**about), plan.optimizer)


def _factor(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> float:
    """Return the one number that a scheduler has multiplied all rates by."""
    pairs = list(zip(before, now, strict=True))
    free = {"params", *MOVED}
    moved = [key for one, own in pairs for key in one.keys() - free if own[key] != one[key]]
    if moved:
        raise ValueError(
            f"scheduler= moves {moved[0]} (leave that out: cycle_momentum=False), and {SHARED}"
        )
    if any(own["lr"] and not one["lr"] for one, own in pairs):
        raise ValueError(f"scheduler= raises a rate from 0: give lr above 0, for {SHARED}")
    factors = [float(own["lr"] / one["lr"]) for one, own in pairs if one["lr"]]
    if not all(math.isclose(factors[0], each, rel_tol=1e-9) for each in factors):
        raise ValueError(f"scheduler= moves the rates of groups differently, and {SHARED}")
    return factors[0] if factors else 1.0


def _cut(plan: Plan, units: int) -> int:
    """Return the one cut: where the method fixes it, there; else as asked, or after the first."""
    rules = TABLE[plan.method]
    allowed = rules.cuts(units)
    usual = min(1, len(allowed) - 1, units - rules.shared)  # a shared tail has one unit at least
    own = plan.settings.get("cuts")
    cuts = [as_whole(each) for each in own] if own is not None else [allowed[usual]]
    if len(cuts) != 1:
        raise ValueError(f"cuts is {list(cuts)}: a network is split once, give one cut")
    return cuts[0]


def _samples(plan: Plan) -> tuple[Tensor, Tensor]:
    """Return the training samples; images of bytes stay such, for devices take means off.

    Raises:
        TypeError: what can't be sent: nested inputs, or targets that are no classes.
        ValueError: labels of no class.
    """
    train = plan.data.train
    x, y = (train.x, train.y) if isinstance(train, Part) else in_memory(train)
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{plan.method} sends one tensor, and x is {given(x)}: give that tensor alone, or"
            ' method="1f1b"'
        )
    if not are_numbers(y):
        raise TypeError(f"{plan.method} compares classes: y is {given(y)}, give class numbers")
    if len(y) and int(y.min()) < 0:
        raise ValueError(
            f"labels are {int(y.min())} to {int(y.max())}: split learning's are 0 to C - 1, and it"
            " trains on all samples: leave those without a class (such as -100) out"
        )
    return x, y


def _scorer(
    blocks: Sequence[nn.Module], plan: Plan
) -> Callable[[dict[str, Tensor]], dict[str, float]]:
    own = _Sequence(*copy.deepcopy(list(blocks)))

    def score(state: dict[str, Tensor]) -> dict[str, float]:
        own.load_state_dict(state)
        return _judge(own, plan.data.validation, plan).values

    return score


def _kept(blocks: Sequence[nn.Module], plan: Plan, changes: Mapping[str, Any]) -> Kept:
    own, rows = _Sequence(*copy.deepcopy(list(blocks))), Rows(plan.data.train)

    def first_loss(state: Mapping[str, Any]) -> float | None:
        own.load_state_dict(state)
        return rows.loss(SimpleNamespace(model=own, loss=nn.functional.cross_entropy))

    about = told(made(_maker(plan, changes), own.named_parameters()))
    about["data"] = plan.data.fingerprint()
    return Kept(text_of(own), about, first_loss)


def _judge(model: _Sequence, part: Any, plan: Plan) -> Judged:
    return judge(model, part, loss=nn.functional.cross_entropy, metrics=plan.metrics)
