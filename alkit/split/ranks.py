"""The same rounds on machines: rank 0 is the server, and every other rank a device.

    rank 1, device 0   head 0  <==>  tail 0, on a thread  \\
    rank 2, device 1   head 1  <==>  tail 1, on a thread   >  rank 0, which averages
    ...                                                   /

A device runs its own lane and the uplink's, a thread of the server a tail's lane and the
downlink's. What a `send` has carried is heard at the other side, and asked for as its batch begins.
A rank has the halves of its own; of the others it knows optimisers without state, for the rates.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from torch import nn

from alkit.engine.caller import CallerState
from alkit.engine.group import Group
from alkit.engine.ranks import FAR, patience
from alkit.engine.run import Run
from alkit.schedule.task import Place, Schedule, Task
from alkit.schedule.timeline import Interval, Timeline
from alkit.split.channel import Channel
from alkit.split.pairs import Pairs, Round
from alkit.split.schedule import DEVICE, DOWNLINK, LANES, SERVER, UPLINK

SIDES: tuple[tuple[int, ...], ...] = (DEVICE, UPLINK), (SERVER, DOWNLINK)  # lanes by stage


class RankPairs(Pairs):
    """This rank's halves; see `Pairs`.

    Args:
        channels: of the server one to each device, of a device the one to the server.
    """

    def __init__(self, *args: Any, channels: Sequence[Channel], **options: Any) -> None:
        self.rank, self.channels = Group("ranks").rank, channels
        self.lock = threading.Lock()  # of ticks
        super().__init__(*args, **options)

    def part(self, name: str, units: Sequence[nn.Module]) -> list[nn.Module]:
        """Return the units of a half: copies of this rank's own."""
        return super().part(name, units) if self.is_mine(name) else list(units)

    def is_mine(self, name: str) -> bool:
        """Whether this rank trains a half."""
        return name == f"head {self.rank - 1}" if self.rank else name.startswith("tail")

    def moments(self) -> dict[str, Any]:
        """Return what optimisers keep; the server has those of all devices."""
        found = super().moments()
        if self.rank:
            self.channels[0].tell(found[f"head {self.rank - 1}"])
        else:
            found |= {f"head {at}": each.hear() for at, each in enumerate(self.channels)}
        return found

    def load_moments(self, saved: Mapping[str, Any]) -> None:
        """Put back what optimisers kept; of others' halves the rates."""
        others = {name: own for name, own in saved.items() if own and not self.is_mine(name)}
        super().load_moments({**saved, **{n: own | {"state": {}} for n, own in others.items()}})

    def round(self, number: int) -> Round:
        """Train a round; `state` has its end at the server, and at a device its head's."""
        steps, sizes = self.steps(number), self.sizes(number)
        if self.rank:
            [channel], at = self.channels, self.rank - 1
            channel.tell(self._trained(at, steps[at], 0, channel) if at in steps else {})
            state, losses, right = channel.hear()
            self.state |= state
            return Round(losses, sizes, right)
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        caller, told = CallerState.here(), dict[int, Any]()
        for at in range(self.settings.devices):
            about, name = (at, steps.get(at, range(0)), caller, ended), f"alkit-tail-{at}"
            threading.Thread(target=self._tail, args=about, name=name, daemon=True).start()
        for _ in self.channels:
            found = ended.get()
            if isinstance(found, BaseException):
                raise found
            told |= found
        start_s = time.perf_counter()
        self.average({at: told[at]["state"] for at in steps}, sizes)
        end_s = time.perf_counter()
        losses, right = ({at: told[at][key] for at in steps} for key in ("losses", "right"))
        for at, channel in enumerate(self.channels):
            units = {str(unit) for unit in range(self.settings.cuts[at])}
            head = {name: own for name, own in self.state.items() if name.split(".")[0] in units}
            channel.tell((head, losses, right))
        for channel in self.channels:
            channel.sender.settle()
        seen = [row for at in steps for row in told[at]["seen"]]
        for at, some in steps.items():
            seen.append(Interval(f"server {at}", "average", 1, some.stop - 1, 0, start_s, end_s))
        names = [f"{lane} {at}" for at in range(self.settings.devices) for lane in LANES]
        return Round(losses, sizes, right, Timeline(tuple(seen), tuple(names)))

    def _tail(
        self, at: int, steps: range, caller: CallerState, ended: "queue.SimpleQueue[Any]"
    ) -> None:
        """Train a device's tail, and hear what the device has; whatever fails is raised there."""
        try:
            channel, own = self.channels[at], dict[str, Any](seen=[])
            if len(steps) and len(self.pair(at)) > 1:
                with caller.entered():
                    own = self._trained(at, steps, 1, channel)
            told = channel.hear()
            if told:
                shift_s = channel.offset_s
                rows = [Interval(*row) for row in told["seen"]]
                moved = [
                    row._replace(start_s=row.start_s + shift_s, end_s=row.end_s + shift_s)
                    for row in rows
                ]
                seen = [*(Interval(*row) for row in own["seen"]), *moved, *channel.arrived()]
                own["state"] = told["state"] | own.get("state", {})
                own = told | own | {"seen": [_of_device(at, row, steps.start) for row in seen]}
            ended.put({at: own})
        except BaseException as error:  # it must not be lost with its thread
            ended.put(error)

    def _trained(self, at: int, steps: range, side: int, channel: Channel) -> dict[str, Any]:
        """Run this side's lanes of some steps; return what came out, and what all of them did."""
        pair, given = self.pair(at), self._batches(at, steps, side, channel)
        pair[side].load(self.state)
        pair[side].begin(steps.start)
        run = _Side(self.schedule(at), pair, side, channel)
        # a link before a half, for it takes no time
        run.here(given, self.settings.threads, run.listen, lambda ready: ready - 1)
        run.close()
        names = {f"worker {lane}": name for lane, name in enumerate(LANES)}
        ran = (own for own in run.watch.intervals() if own.kind != "send")
        seen = [own._replace(resource=names[own.resource]) for own in ran] + channel.arrived()
        found = {"state": pair[side].state(), "seen": [tuple(own) for own in seen]}
        return found | {"losses": pair[side].losses, "right": pair[side].right}

    def _batches(self, at: int, steps: Iterable[int], side: int, channel: Channel) -> Iterator[Any]:
        """Yield a device's batches, and note how long they took; at the server a word for each."""
        for number, step in enumerate(steps):
            start_s = time.perf_counter()
            with self.lock:
                next(self.ticks, None)
            parts = None if side else [*self.streams[at].step(step, self.settings.micro[at])]
            times = start_s, time.perf_counter()
            if not side:
                channel.seen.append(Interval("device", "load", 0, number, 0, *times))
            yield parts


class _Side(Run):
    """A run of one side's lanes, which hears of the other's."""

    def __init__(
        self, schedule: Schedule, stages: Sequence[Any], side: int, channel: Channel
    ) -> None:
        own, theirs = SIDES[side], SIDES[1 - side]
        if schedule.workers == 1:  # a device that has all units is alone
            own, theirs = (DEVICE,), ()
        self.told, self.due = _told(schedule, own, theirs), _told(schedule, theirs, own)
        self.channel, self.to_ask = channel, deque[tuple[int, int]]()
        super().__init__(schedule, stages, own, self.due)

    def feed(self) -> None:
        """Take the next batch, and ask for all that the other side will say of it."""
        before = self.fed
        super().feed()
        if self.fed > before:
            self.to_ask += [(at, before) for at in range(len(self.due))]
        self.ask()

    def ask(self) -> None:
        """Ask for what is due, as soon as its size is known, or if it needs none."""
        while self.to_ask:
            place, batch = self.to_ask[0]
            if not self.channel.receiver.ask(place, self.channel.first + batch):
                return
            self.to_ask.popleft()

    def work(self, task: Task, payload: Any, worker: int) -> Any:
        """Run a task; a device's that takes too long ends it, saying where all threads are."""
        with patience() if worker in SIDES[0] else nullcontext():
            return super().work(task, payload, worker)

    def tell(self, task: Task, output: Any) -> None:
        """Say that a task has ended, where the other side waits for it."""
        if task.place in self.told:
            payload = output if task.kind == "send" else None
            batch = self.channel.first + task.batch
            self.channel.send(self.told.index(task.place), batch, payload)

    def listen(self, task: Task | None = None) -> None:
        """Wait for the next task that has ended at the other side."""
        self.ask()
        message = self.channel.take()
        kind, stage, micro = self.due[message.place]
        batch = message.batch - self.channel.first
        self.hear(Task(kind, stage, batch, micro), message.payload)

    def close(self) -> None:
        """Hear the other side out."""
        self.ask()
        while self.channel.receiver.asked:
            self.listen()
            self.ask()
        self.channel.first += self.fed


def _of_device(at: int, row: Interval, first: int) -> Interval:
    return row._replace(resource=f"{row.resource} {at}", batch=row.batch + first)


def _told(schedule: Schedule, tellers: Collection[int], hearers: Collection[int]) -> list[Place]:
    """Return the places of tasks of some lanes that tasks of others wait for, in their order."""
    far = [Task(kind, stage, FAR, micro) for kind, stage, micro in schedule.places]
    hear = [task for task in far if schedule.lane(task) in hearers]
    found = {each.place for task in hear for each in schedule.waits(task)}
    lanes = {task.place: schedule.lane(task) for task in far}
    return [place for place in schedule.places if place in found and lanes[place] in tellers]
