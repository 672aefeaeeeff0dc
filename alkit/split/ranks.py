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

    def round(self, number: int) -> Round:
        """Train a round; `state` has its end at the server, and at a device its head's."""
        steps = self.steps(number)
        if self.rank:
            return self._device(self.rank - 1, steps, number)
        ended: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        caller = CallerState.here()
        for at in range(self.settings.devices):
            about = at, steps.get(at, range(0)), caller, ended
            name = f"alkit-tail-{at}"
            threading.Thread(target=self._tail, args=about, name=name, daemon=True).start()
        told = dict[int, Any]()
        for _ in self.channels:
            at, own = ended.get()
            if isinstance(own, BaseException):
                raise own
            told[at] = own
        return self._averaged(number, {at: told[at] for at in steps})

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

    def _device(self, at: int, steps: Mapping[int, range], number: int) -> Round:
        """Train this device's steps, if it has any left, and take the average's head."""
        [channel], [head, *_] = self.channels, self.pair(at)
        told: dict[str, Any] = {}
        if at in steps:
            head.load(self.state)
            seen = self._lanes(at, steps[at], 0, channel) + channel.arrived()
            told = {"state": head.state(), "seen": [tuple(own) for own in seen]}
            told |= {"losses": head.losses, "right": head.right}
        channel.tell(told)
        heard = channel.hear()
        self.state |= heard["state"]
        return Round(heard["losses"], self.sizes(number), heard["right"])

    def _tail(
        self, at: int, steps: range, caller: CallerState, ended: "queue.SimpleQueue[Any]"
    ) -> None:
        """Train a device's tail, and hear what the device has; whatever fails is raised there."""
        try:
            [_, *tails], channel = self.pair(at), self.channels[at]
            seen = list[Interval]()
            with caller.entered():
                if len(steps) and tails:
                    tails[0].load(self.state)
                    seen = self._lanes(at, steps, 1, channel)
            told = channel.hear()
            for row in (Interval(*row) for row in told.get("seen", ())):
                start_s, end_s = row.start_s + channel.offset_s, row.end_s + channel.offset_s
                seen.append(row._replace(start_s=start_s, end_s=end_s))
            for tail in tails if told else ():
                told["state"] |= tail.state()
                told |= {"losses": tail.losses, "right": tail.right}
            told["seen"] = [
                own._replace(resource=f"{own.resource} {at}", batch=own.batch + steps.start)
                for own in [*seen, *channel.arrived()]
            ]
            ended.put((at, told))
        except BaseException as error:  # it must not be lost with its thread
            ended.put((at, error))

    def _averaged(self, number: int, told: Mapping[int, Any]) -> Round:
        """Average what devices and their tails have trained, and let all know."""
        start_s, sizes = time.perf_counter(), self.sizes(number)
        self.average({at: own["state"] for at, own in told.items()}, sizes)
        end_s = time.perf_counter()
        losses, right = ({at: own[key] for at, own in told.items()} for key in ("losses", "right"))
        for at, channel in enumerate(self.channels):
            cut = self.settings.cuts[at]
            head = {name: own for name, own in self.state.items() if int(name.split(".")[0]) < cut}
            channel.tell({"state": head, "losses": losses, "right": right})
        for channel in self.channels:
            channel.sender.settle()
        names = [f"{lane} {at}" for at in range(self.settings.devices) for lane in LANES]
        seen = [row for own in told.values() for row in own["seen"]]
        for at in told:
            last = self.steps(number)[at].stop - 1
            seen.append(Interval(f"server {at}", "average", 1, last, 0, start_s, end_s))
        return Round(losses, sizes, right, Timeline(tuple(seen), tuple(names)))

    def _lanes(self, at: int, steps: range, side: int, channel: Channel) -> list[Interval]:
        """Run this side's lanes of some steps; return when they worked."""
        own, threads = self.pair(at), self.settings.threads
        own[side].begin(steps.start, at)
        run = _Side(self.schedule(at), own, side, channel)
        given = self._numbers(steps) if side else self._loaded(at, steps, channel.seen)
        run.here(given, threads, run.listen, lambda ready: ready - 1)  # a link before a half
        run.close()
        names = {f"worker {lane}": name for lane, name in enumerate(LANES)}
        return [
            i._replace(resource=names[i.resource])
            for i in run.watch.intervals()
            if i.kind != "send"
        ]

    def _loaded(self, at: int, steps: Sequence[int], seen: list[Interval]) -> Iterator[Any]:
        """Yield a device's batches, and note how long they took."""
        start_s = time.perf_counter()
        for number, parts in enumerate(self.batches(at, steps)):
            now_s = time.perf_counter()
            seen.append(Interval("device", "load", 0, number, 0, start_s, now_s))
            yield parts
            start_s = time.perf_counter()

    def _numbers(self, steps: Iterable[int]) -> Iterator[int]:
        """Yield something for every batch: the samples are the devices'."""
        for step in steps:
            with self.lock:
                next(self.ticks, None)
            yield step


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
        """Ask for what is due, as far as its size is known or needs not be."""
        while self.to_ask:
            place, batch = self.to_ask[0]
            if not self.channel.receiver.ask(place, self.channel.first + batch):
                return
            self.to_ask.popleft()

    def work(self, task: Task, payload: Any, worker: int) -> Any:
        """Run a task; a device's that takes too long ends it, saying where all threads are."""
        if worker in SIDES[1]:  # the clock is one for all threads of a process
            return super().work(task, payload, worker)
        with patience():
            return super().work(task, payload, worker)

    def tell(self, task: Task, output: Any) -> None:
        """Say that a task has ended, where the other side waits for it."""
        if task.place in self.told:
            place = self.told.index(task.place)
            payload = output if task.kind == "send" else None
            self.channel.send(place, self.channel.first + task.batch, payload)

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


def _told(schedule: Schedule, tellers: Collection[int], hearers: Collection[int]) -> list[Place]:
    """Return the places of tasks of some lanes that tasks of others wait for, in their order."""
    far = [Task(kind, stage, FAR, micro) for kind, stage, micro in schedule.places]
    waits = (each for task in far if schedule.lane(task) in hearers for each in schedule.waits(task))
    found = {each.place for each in waits if schedule.lane(each) in tellers}
    return [place for place in schedule.places if place in found]
