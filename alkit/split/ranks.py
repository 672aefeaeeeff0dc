"""The same rounds on machines: rank 0 is the server, and every other rank a device.

    rank 1, device 0   head 0  <==>  tail 0, on a thread  \\
    rank 2, device 1   head 1  <==>  tail 1, on a thread   >  rank 0, which averages
    ...                                                   /

A device runs its own lane and the uplink, a thread of the server the lane of a tail and the
downlink. Each side hears the payloads of `send` from the other, and asks as their batch begins.
A rank trains the halves of its own; of the others it knows optimisers, for the rates.
"""

import json
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from alkit.engine import checkpoint as checkpoints
from alkit.engine.caller import CallerState
from alkit.engine.launch import patience
from alkit.engine.messages import Group
from alkit.engine.ranks import FAR
from alkit.engine.run import Run
from alkit.schedule.task import Place, Schedule, Task
from alkit.schedule.timeline import Interval, Timeline
from alkit.split.channel import DAY_S, Channel, now_s
from alkit.split.pairs import Pairs, Round
from alkit.split.planner import choice
from alkit.split.profile import measure
from alkit.split.schedule import LANES
from alkit.split.settings import Settings
from alkit.split.stream import Stream

torch.serialization.add_safe_globals([Interval])


def agreed(
    settings: Settings,
    units: Sequence[nn.Module],
    streams: Sequence[Stream],
    checkpoint: str | Path | None = None,
) -> tuple[Settings, list[Channel]]:
    """Return the settings that hold, and the channels of this rank; all ranks call it.

    With `settings.profile` all measure their units, and the server chooses where to cut, unless the
    run goes on from a checkpoint, whose choice holds.
    """
    group = Group()
    text = torch.frombuffer(bytearray(json.dumps(settings.plain()).encode()), dtype=torch.uint8)
    parts = {"settings": text, "labels": [each.y for each in streams]}
    group.check_equal(parts, when="before the first step ", advice="give all the same file or call")
    channels = [Channel(peer) for peer in (range(1, group.ranks) if group.rank == 0 else [0])]
    if not settings.profile:
        return settings, channels
    [part] = streams[max(0, group.rank - 1)].step(0, 1)
    options: dict[str, Any] = {"repeats": settings.profile, "threads": settings.threads}
    profiles = group.gather(measure(units, part.x, part.y, **options))

    def chosen() -> dict[str, Any]:
        if checkpoint is None or not Path(checkpoint).exists():
            return choice(settings, streams, profiles)
        before = checkpoints.load(checkpoint)["settings"]
        return {name: before[name] for name in ("cuts", "micro")}

    return replace(settings, **group.from_first(chosen)), channels


class RankPairs(Pairs):
    """This rank's halves; the server has a channel to each device, a device one to the server."""

    def __init__(self, *args: Any, channels: Sequence[Channel], **options: Any) -> None:
        self.rank, self.channels = Group().rank, channels
        self.lock = threading.Lock()  # of ticks
        super().__init__(*args, **options)

    def part(self, name: str, units: Sequence[nn.Module]) -> list[nn.Module]:
        """Return the units of a half: copies, if this rank has them."""
        mine = name == f"head {self.rank - 1}" if self.rank else name.startswith("tail")
        return super().part(name, units) if mine else list(units)

    def moments(self) -> dict[str, Any]:
        """Return the states of the optimisers; the server has those of all devices."""
        found = super().moments()
        if self.rank:
            self.channels[0].tell(found[f"head {self.rank - 1}"])
        else:
            found |= {f"head {at}": each.hear() for at, each in enumerate(self.channels)}
        return found

    def round(self, number: int) -> Round:
        """Train a round; at the server `state` has its end, at a device the end of its head."""
        steps, sizes = self.steps(number), self.sizes(number)
        if self.rank:
            [channel], at = self.channels, self.rank - 1
            channel.tell(self.trained(at, steps[at]) if at in steps else None)
            state, losses, right = channel.hear()
            self.state |= state
            return Round(losses, sizes, right)
        found = self.tails(steps)
        start_s = now_s()
        self.average({at: found[at]["state"] for at in steps}, sizes)
        times = start_s, now_s()
        losses, right = ({at: found[at][key] for at in steps} for key in ("losses", "right"))
        cut, state = self.settings.cut, self.state.items()
        head = {key: own for key, own in state if int(key.split(".")[0]) < cut}
        for channel in self.channels:
            channel.tell((head, losses, right))
        for channel in self.channels:
            channel.sender.settle()
        seen = [row for at in steps for row in found[at]["seen"]]
        for at, some in steps.items():
            seen.append(Interval(f"server {at}", "average", 1, some.stop - 1, 0, *times))
        names = [f"{lane} {at}" for at in range(self.settings.devices) for lane in LANES]
        return Round(losses, sizes, right, Timeline(tuple(seen), tuple(names)))

    def tails(self, steps: Mapping[int, range]) -> dict[int, dict[str, Any]]:
        """Train all tails, each on a thread; return the results of both sides by device."""
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        caller, found = CallerState.here(), dict[int, dict[str, Any]]()

        def follow(at: int) -> None:
            try:
                with caller.entered():
                    ended.put((at, self.tail(at, steps.get(at, range(0))), None))
            except BaseException as error:  # it must not be lost with its thread
                ended.put((at, {}, error))

        for at in range(self.settings.devices):
            threading.Thread(target=follow, args=[at], daemon=True).start()
        for _ in self.channels:
            at, found[at], error = ended.get()
            if error is not None:
                raise error
        return found

    def tail(self, at: int, steps: range) -> dict[str, Any]:
        """Train the tail of a device, and hear the results on the device."""
        channel, own = self.channels[at], dict[str, Any](state={}, seen=[])
        if len(steps) and len(self.pair(at)) > 1:
            own = self.trained(at, steps)
        told = channel.hear()
        if told is None:  # the device had nothing to do
            return own
        seen = [
            i._replace(resource=f"{i.resource} {at}", batch=i.batch + steps.start)
            for i in (*own["seen"], *told["seen"], *channel.arrived())
        ]
        return told | own | {"state": told["state"] | own["state"], "seen": seen}

    def trained(self, at: int, steps: range) -> dict[str, Any]:
        """Run the lanes of this side for some steps; return the results, and when they ran."""
        pair, channel = self.pair(at), self.channels[0 if self.rank else at]
        half = pair[channel.serves]
        half.load(self.state)
        half.begin(steps.start)
        run = _Side(self.schedule(), pair, channel)
        run.here(self.batches(at, steps), self.settings.threads)
        run.close()
        names, seen = {f"worker {lane}": name for lane, name in enumerate(LANES)}, channel.arrived()
        for i in run.intervals:
            times: Any = {"start_s": i.start_s + DAY_S, "end_s": i.end_s + DAY_S}
            if i.kind != "send":
                seen.append(i._replace(resource=names[i.resource], **times))
        return {"state": half.state(), "seen": seen, "losses": half.losses, "right": half.right}

    def batches(self, at: int, steps: Sequence[int]) -> Iterator[Any]:
        """Yield the batches of a device, and note their times; at the server None for each."""
        made = super().batches(at, steps)
        for number in range(len(steps)):
            start_s = now_s()
            if self.rank:
                parts = next(made)
                times = start_s, now_s()
                self.channels[0].seen.append(Interval("device", "load", 0, number, 0, *times))
                yield parts
            else:
                with self.lock:
                    next(self.ticks, None)
                yield None


class _Side(Run):
    """A run of the lanes of one side, which hears of the other lanes."""

    def __init__(self, schedule: Schedule, stages: Sequence[Any], channel: Channel) -> None:
        side = int(channel.serves)
        self.told, self.due = _told(schedule, side), _told(schedule, 1 - side)
        self.channel = channel
        own = range(2 * side, min(2 * side + 2, schedule.lanes))  # a stage's half, and its link
        super().__init__(schedule, stages, own, self.due)

    def _urgency(self, lane: int) -> tuple[bool, float]:
        return True, lane  # a link before a half, because it takes no time

    def feed(self) -> None:
        """Take the next batch, and ask for all messages about it from the other side."""
        super().feed()
        for at in () if self.closed else range(len(self.due)):
            self.channel.receiver.ask(at, self.channel.first + self.fed - 1)

    def work(self, task: Task, payload: Any, worker: int) -> Any:
        """Run a task; a device whose task takes too long ends, showing where all threads are."""
        with nullcontext() if self.channel.serves else patience():
            return super().work(task, payload, worker)

    def tell(self, task: Task, output: Any) -> None:
        """Say that a task has ended, where the other side waits for it."""
        if task.place in self.told:
            place, batch = self.told.index(task.place), self.channel.first + task.batch
            self.channel.send(place, batch, output if task.kind == "send" else None)

    def listen(self, task: Task | None = None) -> None:
        """Wait for the next task that has ended at the other side."""
        message = self.channel.take()
        kind, stage, micro = self.due[message.place]
        self.hear(Task(kind, stage, message.batch - self.channel.first, micro), message.payload)

    def close(self) -> None:
        """Hear the other side out."""
        while self.channel.receiver.asked:
            self.listen()
        self.channel.first += self.fed


def _told(schedule: Schedule, stage: int) -> list[Place]:
    """Return the places of tasks of a stage that tasks of the other stage wait for, in order."""
    far = [Task(kind, own, FAR, micro) for kind, own, micro in schedule.places if own != stage]
    found = {each.place for task in far for each in schedule.waits(task)}
    return [place for place in schedule.places if place in found and place[1] == stage]
