"""Devices and their tails in one process, round by round: each trains, and all become one."""

import copy
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from alkit.engine.checkpoint import put_back
from alkit.engine.run import run_single, run_threads
from alkit.schedule.flushed import one_f_one_b
from alkit.schedule.task import Schedule
from alkit.schedule.timeline import Timeline
from alkit.split.half import Half, Optimizer, state_of
from alkit.split.schedule import LANES, split
from alkit.split.settings import Settings
from alkit.split.stream import MicroBatch, Stream, round_count, round_steps, step_sizes


class Round(NamedTuple):
    """The results of a round by device: losses and sizes of its steps, number of right samples.

    The timeline has the tasks of all lanes.
    """

    losses: dict[int, list[float]]
    sizes: dict[int, list[int]]
    right: dict[int, int]
    timeline: Timeline = Timeline((), ())


class Pairs:
    """All pairs of heads and tails, of units which stay as they are; `places` are where they train.

    Attributes:
        state: of the whole network, after the last round.
        rounds: how many there are to be.
        halves: by name, "head 0", "tail 0", ...
        ticks: every step asks it for one more; a caller that counts steps may set it.
    """

    def __init__(
        self,
        units: Sequence[nn.Module],
        settings: Settings,
        streams: Sequence[Stream],
        make: Optimizer,
        places: Sequence[torch.device] = (),
    ) -> None:
        self.settings, self.streams, self.places = settings, streams, places
        self.state, self.ticks = state_of(nn.ModuleList(units)), iter(())
        self.rounds = round_count(settings, [len(each.y) for each in streams])
        self.halves = dict[str, Half]()
        cut, whole = settings.cut, settings.cut == len(units)
        for at in range(settings.devices):
            options: dict[str, Any] = {"is_last": whole, "seed": settings.seed, "device": at}
            head = self.part(f"head {at}", units[:cut])
            self.halves[f"head {at}"] = Half(head, make, **options)
            if not whole:
                options |= {"first": cut, "stage": 1, "is_last": True}
                tail = self.part(f"tail {at}", units[cut:])
                self.halves[f"tail {at}"] = Half(tail, make, **options)

    def part(self, name: str, units: Sequence[nn.Module]) -> list[nn.Module]:
        """Return the units of a half, to be trained."""
        place = self.places[-1 if name.startswith("tail") else 0] if self.places else None
        return [copy.deepcopy(unit).to(place) for unit in units]

    def pair(self, at: int) -> list[Half]:
        """Return the head and tail of a device; only the head where it is the whole network."""
        names = f"head {at}", f"tail {at}"
        return [self.halves[name] for name in names if name in self.halves]

    def moments(self) -> dict[str, Any]:
        """Return the states of the optimisers."""
        held = {name: half.optimizer for name, half in self.halves.items()}
        return {name: each and each.state_dict() for name, each in held.items()}

    def load_moments(self, saved: Mapping[str, Any]) -> None:
        """Put back the states of the optimisers."""
        for name, half in self.halves.items():
            if half.optimizer is not None:
                put_back(half.optimizer, saved[name])

    def steps(self, number: int) -> dict[int, range]:
        """Return the steps of a round of those devices that have any left."""
        counts = enumerate(len(each.y) for each in self.streams)
        found = {at: round_steps(self.settings, count, number) for at, count in counts}
        return {at: steps for at, steps in found.items() if len(steps)}

    def sizes(self, number: int) -> dict[int, list[int]]:
        """Return how many samples each step of a round has, of those devices that have steps."""
        return {
            at: [sum(step_sizes(self.settings, len(self.streams[at].y), s, 1)) for s in steps]
            for at, steps in self.steps(number).items()
        }

    def round(self, number: int) -> Round:
        """Train a round; its end is in `state`."""
        steps, sizes = self.steps(number), self.sizes(number)
        seen = Timeline.joined([self.run(at, each) for at, each in steps.items()])
        pairs = {at: self.pair(at) for at in steps}
        states = {at: [half.state() for half in pair] for at, pair in pairs.items()}
        self.average({at: dict(ChainMap(*each)) for at, each in states.items()}, sizes)
        losses = {at: pair[-1].losses for at, pair in pairs.items()}
        return Round(losses, sizes, {at: pair[-1].right for at, pair in pairs.items()}, seen)

    def run(self, at: int, steps: range) -> Timeline:
        """Train the steps of a device; its halves keep the results."""
        pair = self.pair(at)
        for half in pair:
            half.load(self.state)
            half.begin(steps.start)
        # of one micro-batch no two lanes work at the same time
        run = run_threads if self.settings.micro > 1 else run_single
        batches, threads = self.batches(at, steps), self.settings.threads
        found = run(self.schedule(), pair, batches, threads=threads)
        names = {f"worker {lane}": f"{name} {at}" for lane, name in enumerate(LANES)}
        renamed = (i._replace(resource=names[i.resource]) for i in found.intervals)
        return Timeline.of(renamed, names.values(), found.clock)

    def schedule(self) -> Schedule:
        """Return an iteration of a device and its tail; one with all units has no tail."""
        cut, micro = self.settings.cut, self.settings.micro
        alone = cut == self.settings.units
        return one_f_one_b(1, micro) if alone else split(micro, returns=cut > 0)

    def batches(self, at: int, steps: Sequence[int]) -> Iterator[list[MicroBatch]]:
        """Yield the input of stage 0: the micro-batches of a step."""
        for step in steps:
            next(self.ticks, None)
            yield list(self.streams[at].step(step, self.settings.micro))

    def average(
        self, states: Mapping[int, Mapping[str, Tensor]], sizes: Mapping[int, Sequence[int]]
    ) -> None:
        """Put the mean over devices, weighted by their samples, into `state`."""
        self.state = average(list(states.values()), [sum(sizes[at]) for at in states])


def average(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """Return one state from states of complete networks, weighted (FedAvg, McMahan et al. 2017).

    Whole numbers, such as BatchNorm's counters, are rounded; sums are in float64.
    """
    if len(states) == 1:
        return {name: tensor.clone() for name, tensor in states[0].items()}
    made, total = dict[str, Tensor](), sum(weights)
    for name, first in states[0].items():
        pairs = zip(states, weights, strict=True)
        value = sum(own[name].double() * (weight / total) for own, weight in pairs)
        assert isinstance(value, Tensor)
        made[name] = (value if first.is_floating_point() else value.round()).to(first.dtype)
    return made
