"""Split and federated learning behind `alkit.fit`: devices and server on threads."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from alkit.data.arguments import given
from alkit.data.given import in_memory
from alkit.data.labels import are_numbers
from alkit.data.parts import Part
from alkit.engine.behaviour import Rows, text_of
from alkit.engine.device import devices_named, place
from alkit.engine.evaluate import Judged, judge
from alkit.engine.rates import scheduled
from alkit.engine.record import Record
from alkit.engine.request import Request
from alkit.models.blocks import as_blocks
from alkit.models.modes import evaluating
from alkit.split.average import DIVERGED
from alkit.split.data import normal_of
from alkit.split.deal import deal
from alkit.split.kept import Kept
from alkit.split.link import Refused
from alkit.split.methods import TABLE
from alkit.split.server import QuorumLost
from alkit.split.train import train

NAMES = {name: name for name in ("epochs", "augment", "seed", "threads", "micro")}
NAMES |= {"batch_size": "batch"}
# what is refused, and why a party of several machines can't have it
REFUSED = {
    "executor": "it brings its own threads, or programs of several machines",
    "ranks": "its parties are no ranks: give workers=, or start `alkit split`",
    "exits": "that is AL's",
    "clip": "no side sees the norm of all gradients",
    "accumulate": "give micro=, or a larger batch_size",
    "compile": "devices run the units as they come",
    "drop_last": "devices deal the last samples among their steps",
    "patience": "how many rounds there are is agreed on before the first",
    "evaluate_train": "samples stay with the devices",
    "stop_at_divergence": "a side that meets it ends the run for all",
    "precision": "what crosses the wire has one type, float32",
    "settings": "give epochs=, momentum=, ... by name",
}


class _Sequence(nn.Sequential):
    """The units in a row, as a model that predicts."""

    @torch.no_grad()
    def predict(self, x: Any) -> Tensor:
        """Return the scores in evaluation mode; the mode is restored."""
        with evaluating(self):
            return self(place(x, self))


def model_of(request: Request) -> _Sequence:
    """Return the blocks as a model that predicts."""
    return _Sequence(*as_blocks(request.model))


def fit(request: Request) -> Record:
    """Run what was asked: blocks, cut once; samples are dealt among `workers` devices, or 2.

    Settings are those of `alkit.split.Settings`. The blocks end with the averaged weights of the
    last round.
    """
    request.refuse("loss", why="its tails compare classes by cross-entropy")
    for name, why in REFUSED.items():
        request.refuse(name, why=why)
    model = model_of(request)
    blocks = list(model)
    cut = _cut(request, len(blocks))
    x, y = _samples(request)
    train_part = request.data.train
    changes = request.given_options(**NAMES) | dict(request.changes)
    if request.one_lr is not None:
        changes["lr"] = request.one_lr
    if request.plan.scheduler != "constant":
        changes["factors"] = _factors(request, changes)
    if request.device is not None:
        model.to(devices_named(request.device)[-1])  # the tail's, where it is tested
    with _divergence_told():
        record = train(
            blocks,
            _parts(x, y, request.workers or 2, request.plan.seed),
            cut=cut,
            method=request.method,
            device=request.device,
            optimizer=request.optimizer,
            path=None if request.checkpoint is None else Path(request.checkpoint),
            kept=None if request.checkpoint is None else _kept(blocks, request),
            normal=normal_of(train_part) if isinstance(train_part, Part) else None,
            scaled=isinstance(train_part, Part),
            evaluate=None if request.data.validation is None else _scorer(blocks, request),
            **changes,
        )
    nn.ModuleList(blocks).load_state_dict(record.state)
    rows = [
        {"epoch": at, "loss": _mean(own.losses), "samples": record.samples[at - 1]}
        | Judged(values=own.scores).row("val")
        | {"train_s": own.seconds}
        for at, own in enumerate(record.rounds, 1)
    ]
    tested = Judged() if request.data.test is None else _judge(model, request.data.test, request)
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


def _factors(request: Request, changes: Mapping[str, Any]) -> list[float]:
    """Return what a scheduler makes of the rate by round, which is what all parties share."""
    plan = request.plan
    request.refuse(
        "scheduler_every", why="a round is what all parties share: it steps once an epoch"
    )
    if changes.get("aggregate_every", -1) != -1:
        raise ValueError("scheduler= goes by epochs: leave aggregate_every at -1, once an epoch")
    lr = float(changes.get("lr", 0.01))
    dummy = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr, momentum=0.9)
    stub = SimpleNamespace(named_optimizers=lambda: {"all": dummy})
    found = []
    with scheduled(stub, plan.scheduler, plan.epochs, plan.end_factor) as rates:
        for epoch in range(plan.epochs):
            found.append(rates.start_epoch(epoch) / lr)
            rates.end_epoch({})
    return found


@contextmanager
def _divergence_told() -> Iterator[None]:
    """Say what every method says of losses that are not finite, whichever side has seen it."""
    try:
        yield
    except (Refused, QuorumLost) as error:
        if DIVERGED in str(error):
            raise FloatingPointError(str(error)) from error
        raise


def _cut(request: Request, units: int) -> int:
    """Return the one cut: where the method fixes it, there; else as asked, or after the first."""
    allowed = TABLE[request.method].cuts(units)
    cuts = request.cuts if request.cuts is not None else [allowed[min(1, len(allowed) - 1)]]
    if len(cuts) != 1:
        raise ValueError(f"cuts is {list(cuts)}: a network is split once, give one cut")
    return cuts[0]


def _samples(request: Request) -> tuple[Tensor, Tensor]:
    """Return the training samples; images of bytes stay such, for devices take means off.

    Raises:
        TypeError: what can't be sent: nested inputs, or targets that are no classes.
    """
    train = request.data.train
    x, y = (train.x, train.y) if isinstance(train, Part) else in_memory(train)
    if not isinstance(x, Tensor):
        raise TypeError(f"{request.method} sends one tensor: x is {given(x)}")
    if not are_numbers(y):
        raise TypeError(f"{request.method} compares classes: y is {given(y)}, give class numbers")
    return x, y


def _parts(x: Tensor, y: Tensor, devices: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    each, rest = divmod(len(y), devices)
    sizes = [each + (at < rest) for at in range(devices)]
    return [(x[rows], y[rows]) for rows in deal(y, devices, sizes=sizes, seed=seed)]


def _scorer(
    blocks: Sequence[nn.Module], request: Request
) -> Callable[[dict[str, Tensor]], dict[str, float]]:
    own = _Sequence(*copy.deepcopy(list(blocks)))

    def score(state: dict[str, Tensor]) -> dict[str, float]:
        own.load_state_dict(state)
        return _judge(own, request.data.validation, request).values

    return score


def _kept(blocks: Sequence[nn.Module], request: Request) -> Kept:
    own, rows = _Sequence(*copy.deepcopy(list(blocks))), Rows(request.data.train)

    def behaviour(state: Mapping[str, Any]) -> dict[str, Any]:
        own.load_state_dict(state)
        return rows.behaviour(SimpleNamespace(model=own, loss=nn.functional.cross_entropy))

    return Kept(text_of(own), behaviour, anyway=request.resume == "anyway")


def _judge(model: _Sequence, part: Any, request: Request) -> Judged:
    return judge(model, part, loss=nn.functional.cross_entropy, metrics=request.metrics)


def _mean(losses: dict[int, list[float]]) -> float:
    found = [loss for own in losses.values() for loss in own]
    return sum(found) / len(found) if found else float("nan")
