"""Pairs of heads and tails in the one loop; a round, between two averages, is its epoch."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.base.arguments import Brief
from alkit.engine import trainer
from alkit.engine.device import place
from alkit.engine.evaluate import Judged, Metrics
from alkit.engine.messages import Group
from alkit.engine.modes import evaluating
from alkit.schedule.timeline import Timeline
from alkit.split import results
from alkit.split.pairs import Pairs, Round
from alkit.split.settings import Settings


class Whole(nn.Sequential):
    """The units in a row, as a model that predicts."""

    @torch.no_grad()
    def predict(self, x: Any) -> Tensor:
        """Return the scores in evaluation mode; the mode is restored."""
        with evaluating(self):
            return self(place(x, self))

    def named_optimizers(self) -> dict[str, Any]:
        """Return none: they are those of heads and tails."""
        return {}


@dataclass(frozen=True, repr=False)
class Details(Brief):
    """The part of split learning in the record."""

    settings: Settings  # as they held, cuts and micro-batches included
    rounds: tuple[Round, ...]  # their results, in all of the run
    losses: dict[int, Tensor]  # of each device, in the order of its steps


class Trainer(trainer.Trainer):
    """Rounds, for the loop; `model` has the average after each, and the pairs have copies."""

    loss = staticmethod(F.cross_entropy)

    def __init__(self, model: Whole, pairs: Pairs, group: Group) -> None:
        self.model, self.pairs, self.group = model, pairs, group
        self.rounds = list[Round]()

    def batches(self, plan: Any, train: Any, epoch: int) -> Iterator[tuple[Tensor, None]]:
        """Yield sizes of the steps of the round, device by device; devices have the batches."""
        for sizes in self.pairs.sizes(epoch).values():
            yield from ((torch.empty(size), None) for size in sizes)

    def train(self, batches: Iterable[Any]) -> trainer.Trained:
        """Train a round."""
        start_s, events = time.perf_counter(), self.pairs.settings.events
        self.pairs.ticks = iter(batches)
        made = self.pairs.round(len(self.rounds))
        for _ in self.pairs.ticks:
            continue  # of steps that other ranks train
        self.model.load_state_dict(self.pairs.state)
        if events and self.group.rank == 0:
            results.add(events, made.timeline, first=not self.rounds)
        self.rounds.append(made._replace(timeline=Timeline((), ())))
        losses = [loss for each in made.losses.values() for loss in each]
        rows = torch.tensor(losses, dtype=torch.float64).view(-1, 1, 1)
        timeline = Timeline.of(made.timeline.intervals, made.timeline.resources)
        return trainer.Trained(rows, timeline, time.perf_counter() - start_s)

    def row(self, trained: trainer.Trained) -> dict[str, Any]:
        """Return the number of the round, where rounds are not epochs."""
        return {} if self.pairs.settings.aggregate_every == -1 else {"round": len(self.rounds)}

    def judge(self, part: Any, metrics: Metrics | None) -> Judged:
        """Return the results of the averaged network, which the first rank has."""
        judge = super().judge
        return Judged(**self.group.from_first(lambda: vars(judge(part, metrics))))

    def named_optimizers(self) -> dict[str, torch.optim.Optimizer | None]:
        """Return the optimisers of heads and tails, whose rates the scheduler moves."""
        return {name: half.optimizer for name, half in self.pairs.halves.items()}

    def state(self) -> dict[str, Any]:
        """Return all that training changes; the first rank has all of it."""
        rounds, model = [list(each[:3]) for each in self.rounds], dict(self.model.state_dict())
        return {"model": model, "optimizers": self.pairs.moments(), "rounds": rounds}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from a state that `state` returned."""
        self.model.load_state_dict(saved["model"])
        self.pairs.state = {name: each.detach().cpu() for name, each in saved["model"].items()}
        self.pairs.load_moments(saved["optimizers"])
        self.rounds = [Round(*each) for each in saved["rounds"]]

    @property
    def details(self) -> Details:
        """Return the results of all rounds."""
        settings, losses = self.pairs.settings, dict[int, Tensor]()
        for at in range(settings.devices):
            losses[at] = torch.tensor([v for each in self.rounds for v in each.losses.get(at, ())])
        return Details(settings, tuple(self.rounds), losses)
