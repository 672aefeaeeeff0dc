"""Split and federated learning behind `alkit.fit`: devices and server on threads."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from alkit.data.arguments import given
from alkit.data.given import in_memory
from alkit.data.labels import are_numbers
from alkit.data.parts import Part
from alkit.engine.asked import Asked
from alkit.engine.device import devices_named, place
from alkit.engine.evaluate import Judged, judge
from alkit.engine.record import Record
from alkit.models.blocks import as_blocks
from alkit.models.modes import evaluating
from alkit.split.answers import Refused
from alkit.split.data import normal_of
from alkit.split.deal import deal
from alkit.split.expect import DIVERGED
from alkit.split.methods import TABLE
from alkit.split.train import train
from alkit.split.waiting import QuorumLost

__all__ = ["fit", "model_of"]

NAMES = {name: name for name in ("epochs", "augment", "seed", "threads", "micro")}
NAMES |= {"batch_size": "batch"}
REFUSED: tuple[str, ...] = (
    "executor",
    "ranks",
    "exits",
    "tensorboard",
    "schedule",
    "clip",
    "accumulate",
    "compile",
)
REFUSED += ("end_factor", "drop_last", "patience", "evaluate_train", "stop_at_divergence", "resume")


class _Sequence(nn.Sequential):
    """The units in a row, as a model that predicts."""

    @torch.no_grad()
    def predict(self, x: Any) -> Tensor:
        """Return the scores in evaluation mode; the mode is restored."""
        with evaluating(self):
            return self(place(x, self))


def model_of(asked: Asked) -> _Sequence:
    """Return the blocks as a model that predicts."""
    return _Sequence(*as_blocks(asked.model))


def fit(asked: Asked) -> Record:
    """Run what was asked: blocks, cut once; samples are dealt among `workers` devices, or 2.

    Settings are those of `alkit.split.Settings`. The blocks end with the averaged weights of the
    last round.
    """
    asked.refuse("loss", why="its tails compare classes by cross-entropy")
    asked.refuse(*REFUSED, why="see alkit.split.Settings for its own")
    asked.refuse("settings", why="give epochs=, momentum=, ... by name")
    asked.refuse("precision", why="what crosses the wire has one type, float32")
    model = model_of(asked)
    blocks = list(model)
    x, y = _samples(asked)
    changes = asked.given_options(**NAMES) | dict(asked.changes)
    if asked.one_lr is not None:
        changes["lr"] = asked.one_lr
    if asked.device is not None:
        model.to(devices_named(asked.device)[-1])  # the tail's, where it is tested
    with _divergence_told():
        record = train(
            blocks,
            _parts(x, y, asked.workers or 2, asked.plan.seed),
            cut=_cut(asked, len(blocks)),
            method=asked.method,
            device=asked.device,
            optimizer=asked.optimizer,
            path=None if asked.checkpoint is None else Path(asked.checkpoint),
            normal=normal_of(asked.data.train) if isinstance(asked.data.train, Part) else None,
            evaluate=None if asked.data.validation is None else _scorer(blocks, asked),
            **changes,
        )
    nn.ModuleList(blocks).load_state_dict(record.state)
    rows = [
        {"epoch": at, "loss": _mean(own.losses), "samples": record.samples[at - 1]}
        | Judged(values=own.scores).row("val")
        | {"train_s": own.seconds}
        for at, own in enumerate(record.rounds, 1)
    ]
    tested = Judged() if asked.data.test is None else _judge(model, asked.data.test, asked)
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


@contextmanager
def _divergence_told() -> Iterator[None]:
    """Say what every method says of losses that are not finite, whichever side has seen it."""
    try:
        yield
    except (Refused, QuorumLost) as error:
        if DIVERGED in str(error):
            raise FloatingPointError(str(error)) from error
        raise


def _cut(asked: Asked, units: int) -> int:
    """Return the one cut: where the method fixes it, there; else as asked, or after the first."""
    allowed = TABLE[asked.method].cuts(units)
    cuts = asked.cuts if asked.cuts is not None else [allowed[min(1, len(allowed) - 1)]]
    if len(cuts) != 1:
        raise ValueError(f"cuts is {list(cuts)}: a network is split once, give one cut")
    return cuts[0]


def _samples(asked: Asked) -> tuple[Tensor, Tensor]:
    """Return the training samples; images of bytes stay such, for devices take means off.

    Raises:
        TypeError: what can't be sent: nested inputs, or targets that are no classes.
    """
    train = asked.data.train
    x, y = (train.x, train.y) if isinstance(train, Part) else in_memory(train)
    if not isinstance(x, Tensor):
        raise TypeError(f"{asked.method} sends one tensor: x is {given(x)}")
    if not are_numbers(y):
        raise TypeError(f"{asked.method} compares classes: y is {given(y)}, give class numbers")
    return x, y


def _parts(x: Tensor, y: Tensor, devices: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    each, rest = divmod(len(y), devices)
    sizes = [each + (at < rest) for at in range(devices)]
    return [(x[rows], y[rows]) for rows in deal(y, devices, sizes=sizes, seed=seed)]


def _scorer(
    blocks: Sequence[nn.Module], asked: Asked
) -> Callable[[dict[str, Tensor]], dict[str, float]]:
    own = _Sequence(*copy.deepcopy(list(blocks)))

    def score(state: dict[str, Tensor]) -> dict[str, float]:
        own.load_state_dict(state)
        return _judge(own, asked.data.validation, asked).values

    return score


def _judge(model: _Sequence, part: Any, asked: Asked) -> Judged:
    return judge(model, part, loss=nn.functional.cross_entropy, metrics=asked.metrics)


def _mean(losses: dict[int, list[float]]) -> float:
    found = [loss for own in losses.values() for loss in own]
    return sum(found) / len(found) if found else float("nan")
