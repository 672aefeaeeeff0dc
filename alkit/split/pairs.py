"""Devices and their tails in one process, round by round: who trains, and what becomes one.

method      a round                                                                 after it
pipelearn   every pair of head and tail its own steps (so splitfed, fed, central)   an average
split       one pair after the other; head and tail are handed on                   nothing
splitfed2   one tail for all heads, step by step in an order drawn for each place   heads: an average
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from alkit.data.seeds import generator_for
from alkit.engine.run import execute
from alkit.schedule.flushed import one_f_one_b
from alkit.schedule.task import Schedule
from alkit.schedule.timeline import Timeline
from alkit.split.average import average
from alkit.split.half import Half, Optimizer, state_of
from alkit.split.schedule import LANES, split
from alkit.split.settings import Settings
from alkit.split.stream import MicroBatch, Stream, round_count, round_steps, step_sizes


class Round(NamedTuple):
    """What a round gave, by device: losses and sizes of its steps, and how many samples were right.

    The timeline has what all lanes did.
    """

    losses: dict[int, list[float]]
    sizes: dict[int, list[int]]
    right: dict[int, int]
    timeline: Timeline = Timeline((), ())

    def mean_loss(self, at: int) -> float:
        """Return a device's mean over samples."""
        pairs = list(zip(self.losses[at], self.sizes[at], strict=True))
        return sum(loss * size for loss, size in pairs) / sum(self.sizes[at])


class Pairs:
    """All pairs of heads and tails.

    Args:
        units: the whole network, which stays as it is.
        streams: of each device.
        places: where heads and tails train; default where the units are.

    Attributes:
        state: of the whole network, after the last round.
        rounds: how many there are to be.
        ticks: is asked for one more at every step; whoever counts steps may set it.
    """

    def __init__(
        self,
        units: Sequence[nn.Module],
        settings: Settings,
        streams: Sequence[Stream],
        make: Optimizer,
        places: Sequence[torch.device] = (),
    ) -> None:
        self.settings, self.streams, self.ticks = settings, streams, iter(())
        self.units, self.make, self.places = list(units), make, places
        self.state = state_of(units)
        self.rounds = round_count(settings, [len(own.y) for own in streams])
        self.halves = [self.pair(at) for at in range(settings.devices)]
        if settings.rules.shared:
            for own in self.halves:
                own[1] = self.halves[0][1]

    def pair(self, at: int) -> list[Half]:
        """Return a device's head and tail; the head alone where it is the whole network."""
        cut, whole = self.settings.cuts[at], len(self.units)
        own: dict[str, Any] = {"seed": self.settings.seed, "device": at}
        head = Half(self.part(at, 0), self.make, is_last=cut == whole, **own)
        if cut == whole:
            return [head]
        return [head, Half(self.part(at, 1), self.make, first=cut, stage=1, is_last=True, **own)]

    def part(self, at: int, side: int) -> list[nn.Module]:
        """Return the units of a device's head or tail, to be trained."""
        cut = self.settings.cuts[at]
        own = copy.deepcopy(self.units[cut:] if side else self.units[:cut])
        return [unit.to(self.places[-1 if side else 0]) for unit in own] if self.places else own

    def optimizers(self) -> dict[str, torch.optim.Optimizer | None]:
        """Return those of all heads and tails, each once."""
        found: dict[str, torch.optim.Optimizer | None] = {}
        for at, own in enumerate(self.halves):
            found[f"head {at}"] = own[0].optimizer
            if len(own) > 1 and (at == 0 or not self.settings.rules.shared):
                found[f"tail {at}"] = own[1].optimizer
        return found

    def moments(self) -> dict[str, Any]:
        """Return what optimisers keep."""
        return {
            name: None if own is None else own.state_dict()
            for name, own in self.optimizers().items()
        }

    def load_moments(self, saved: Mapping[str, Any]) -> None:
        """Put back what optimisers kept."""
        for name, own in self.optimizers().items():
            if own is not None:
                own.load_state_dict(saved[name])

    def sizes(self, number: int) -> dict[int, list[int]]:
        """Return how many samples each step of a round has, of those devices that have steps."""
        return {
            at: [sum(step_sizes(self.settings, len(self.streams[at].y), s, 1)) for s in steps]
            for at, steps in self.steps(number).items()
        }

    def steps(self, number: int) -> dict[int, range]:
        """Return the steps of a round of those devices that have any left."""
        own = self.settings
        found = {
            at: round_steps(own, len(each.y), number) for at, each in enumerate(self.streams)
        }
        return {at: each for at, each in found.items() if len(each)}

    def round(self, number: int) -> Round:
        """Train a round; its end is in `state`.

        Raises:
            FloatingPointError: the training has diverged.
        """
        steps, kind = self.steps(number), self.settings.rules.tail
        made = Round({at: [] for at in steps}, self.sizes(number), dict.fromkeys(steps, 0))
        seen = list[Timeline]()
        for at in steps:
            self.load(at)
        for at, some in self.turns(number, steps):
            if kind == "handed on":
                self.load(at)
            seen.append(self.run(at, some, made))
            if kind == "handed on":
                self.state |= self.trained(at)
        if kind != "handed on":
            self.average({at: self.trained(at) for at in steps}, made.sizes)
        return made._replace(timeline=Timeline.joined(seen))

    def turns(self, number: int, steps: Mapping[int, range]) -> Iterator[tuple[int, range]]:
        """Yield who trains which steps, one after the other."""
        if self.settings.rules.tail != "drawn":
            yield from steps.items()
            return
        for place in range(max(map(len, steps.values()))):
            draw = generator_for(self.settings.seed, "turns", number, place)
            for at in torch.randperm(self.settings.devices, generator=draw).tolist():
                if place < len(steps.get(at, ())):
                    yield at, steps[at][place : place + 1]

    def run(self, at: int, steps: range, made: Round) -> Timeline:
        """Train some of a device's steps, and note what came out."""
        own = self.halves[at]
        for half in own:
            half.begin(steps.start, at)
        schedule, threads = schedule_of(self.settings, at), self.settings.threads
        found = execute(schedule, own, self.batches(at, steps), threads=threads)
        self.note(at, made)
        names = {f"worker {lane}": f"{name} {at}" for lane, name in enumerate(LANES)}
        renamed = (i._replace(resource=names[i.resource]) for i in found.intervals)
        return Timeline.of(renamed, names.values(), found.clock)

    def note(self, at: int, made: Round) -> None:
        """Add what a device's end of the network has seen since it began."""
        last = self.halves[at][-1]
        made.losses[at].extend(last.losses)
        made.right[at] += last.right

    def batches(self, at: int, steps: Sequence[int]) -> Iterator[list[MicroBatch]]:
        """Yield what stage 0 takes: a step's micro-batches."""
        for step in steps:
            next(self.ticks, None)
            yield list(self.streams[at].step(step, self.settings.micro[at]))

    def load(self, at: int) -> None:
        """Let a device and its tail begin with `state`; optimisers keep their own."""
        for half in self.halves[at]:
            half.load(self.state)

    def trained(self, at: int) -> dict[str, Tensor]:
        """Return a device's whole network."""
        return {name: own for half in self.halves[at] for name, own in half.state().items()}

    def average(
        self, states: Mapping[int, Mapping[str, Tensor]], sizes: Mapping[int, Sequence[int]]
    ) -> None:
        """Put the mean over devices, weighted by their samples, into `state`.

        Raises:
            FloatingPointError: a weight is not finite.
        """
        mean = average(list(states.values()), [sum(sizes[at]) for at in states])
        if self.settings.rules.shared:  # all have the last one of theirs
            mean |= self.halves[0][1].state()
        for at, unit in enumerate(self.units):
            for name, _ in unit.named_parameters():
                if not mean[f"{at}.{name}"].isfinite().all():
                    raise FloatingPointError(
                        f"{name} of unit {at} is not finite: the training has diverged, lower lr"
                    )
        self.state = mean


def schedule_of(settings: Settings, at: int) -> Schedule:
    """Return an iteration of a device and its tail; one that has all units is alone."""
    cut, micro = settings.cuts[at], settings.micro[at]
    if cut == settings.units:
        return one_f_one_b(1, micro)
    return split(micro, returns=cut > 0)


