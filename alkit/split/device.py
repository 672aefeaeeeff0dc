"""A device: trains its head, and survives a lost link, a restarted server and, with a folder, its
own end.

    hello -> probes -> welcome -> (start -> iterations -> done) a round -> bye

A round that was cut off begins anew: both sides have what it began with. `saved` in the hello tells
the rounds at whose beginning its optimiser is known.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from alkit.engine import checkpoint
from alkit.engine.optimizers import Factory
from alkit.split.check import sound
from alkit.split.greeting import load
from alkit.split.halves import Head, Saved, Tail, factory_of, kept
from alkit.split.link import Link, Lost, Refused
from alkit.split.log import LaneLog
from alkit.split.pools import Pool
from alkit.split.profile import Machine, measure
from alkit.split.schedule import DEVICE, DOWNLINK, one_iteration
from alkit.split.settings import Settings
from alkit.split.stream import MicroBatch, Stream
from alkit.split.wire import Message, WireError

log = logging.getLogger(__name__)


@dataclass
class Job:
    """What a device trains.

    Attributes:
        units: the whole network; the device trains those below the cut.
        stream: its samples.
        optimizer: makes both sides' optimisers; default SGD with the settings' momentum.
    """

    settings: Settings
    units: Sequence[nn.Module]
    stream: Stream
    optimizer: Factory | None = None


class Device:
    """One device.

    Args:
        index: its number, from 0.
        job: what it trains.
        name: of the job; the server refuses a device of another one.
        folder: for its optimiser's state, so that it can go on after its own end; default none.
        keeps: the state stays there at the end of the run, which may be extended.
        retries: attempts to connect again before it gives up; the count starts anew with each
            round that is done.
        pause_s: seconds between attempts.
        threads: operator threads; default the settings'.
        progress: show a bar a round.
    """

    def __init__(
        self,
        index: int,
        job: Job,
        *,
        name: str = "",
        folder: Path | None = None,
        keeps: bool = False,
        retries: int = 20,
        pause_s: float = 0.5,
        threads: int | None = None,
        progress: bool = False,
    ) -> None:
        self.index, self.job, self.name = index, job, name
        self.retries, self.pause_s = retries, pause_s
        self.threads, self.progress = threads or job.settings.threads, progress
        self.path = None if folder is None else Path(folder) / f"device-{index}.pt"
        self.keeps = keeps
        self.pool = Pool(self.threads)
        self.token = uuid4().hex  # another process with this number has another one
        self.half: Head | Tail | None = None
        self.saved: Saved = {}
        self.log = LaneLog()
        self.tries = 0
        self.machine: Machine | None = None  # measured when it is asked for

    async def run(self, connect: Callable[[], Awaitable[Link]]) -> dict[str, Tensor]:
        """Train to the end, and return the network's final weights.

        Args:
            connect: opens a link to the server.
        Raises:
            Lost: no server after all retries.
            Refused: the server does not want this device, or sent what is no message.
        """
        self._load()
        try:
            while True:
                try:
                    link = await connect()
                    try:
                        return await self._session(link)
                    except Lost:
                        await link.why()
                        raise
                    finally:
                        link.close()
                except WireError as error:
                    text = f"device {self.index}: the server sent nonsense: {error}"
                    raise Refused(text) from error
                except Lost as error:
                    self.tries += 1
                    if self.tries > self.retries:
                        error.add_note(f"device {self.index} gave up after {self.retries} retries")
                        raise
                    log.info("device %d: %s; trying again", self.index, error)
                    await asyncio.sleep(self.pause_s)
        finally:
            self.pool.close()

    async def _session(self, link: Link) -> dict[str, Tensor]:
        """Say hello, do what the server says, and return the final weights."""
        values = {"device": self.index, "job": self.name, "token": self.token}
        values |= {"saved": [list(key) for key in self.saved]}
        await link.send(Message("hello", values=values))
        while (told := await link.receive("probe", "load", "welcome")).kind != "welcome":
            await (link.send(Message("probe")) if told.kind == "probe" else self._time(link, told))
        if Settings.read(dict(told.values["settings"])) != self.job.settings:
            raise Refused("the server's settings differ from this file's: give both the same file")
        while (told := await link.receive("start", "bye")).kind == "start":
            await self._round(link, told)
        if self.half is not None and self.half.units:
            self.half.load(told.tensors)
        if self.path is not None and not self.keeps:
            self.path.unlink(missing_ok=True)  # of no use for another run
        return dict(told.tensors)

    async def _time(self, link: Link, told: Message) -> None:
        """Send a load, receive one, and tell what the units take."""
        await link.send(load())
        came = await link.receive("load")
        if self.machine is None:
            self.machine = await self.pool.run(self._measured, told.step)
        values = {"text": self.machine.plain(), "arrived_s": came.arrived_s}
        await link.send(Message("profile", values=values))

    def _measured(self, repeats: int) -> Machine:
        [part] = self.job.stream.step(0, 1)
        return measure(self.job.units, part.x, part.y, repeats=repeats, threads=self.threads)

    async def _round(self, link: Link, start: Message) -> None:
        """Do a round from its beginning, and hand it in."""
        told = start.values
        half = await self.pool.run(self._begun, start)
        self.log.take()
        self.log.arrival(DOWNLINK, start)
        losses, right, samples, last = list[float](), 0, 0, told["last"]
        for step in self._shown(range(told["first"], last), start.round):
            with self.log.task(DEVICE, "load", step):
                parts = await self.pool.run(self._parts, step, told["micro"])
            if isinstance(half, Tail):
                loss, hits = await self.pool.run(self._alone, half, parts, step)
                losses, right = [*losses, loss], right + hits
            else:
                await self._together(link, half, parts, (start.round, step), told["cut"] > 0)
            samples += sum(len(part.y) for part in parts)
        await self.pool.run(self._save, (start.round + 1, told["cut"]), half)
        tensors = half.state() | {"losses": torch.tensor(losses, dtype=torch.float64)}
        tensors |= {"intervals": self.log.take()}
        values = {"samples": samples, "right": right}
        await link.send(Message("done", start.round, last, values=values, tensors=tensors))
        self.tries = 0

    def _parts(self, step: int, micro: int) -> list[MicroBatch]:
        return list(self.job.stream.step(step, micro))

    def _shown(self, steps: range, number: int) -> Iterable[int]:
        name = f"device {self.index}, round {number}"
        return tqdm(steps, desc=name, disable=not self.progress, leave=False)

    def _begun(self, start: Message) -> Head | Tail:
        """Take over the weights of a round's beginning."""
        cut, fresh = start.values["cut"], start.values["fresh"]
        if self.half is None or len(self.half.units) != cut:
            self.half = self._new_half(cut)
        key = start.round, cut
        if not fresh and key not in self.saved:
            raise WireError(f"no optimiser of round {start.round} and cut {cut} is known here")
        self.half.drop()
        self.half.load(start.tensors)
        factor = self.job.settings.factor(start.round)
        self.half.load_optimizer(None if fresh else self.saved[key], factor)
        self._save(key, self.half)
        return self.half

    def _new_half(self, cut: int) -> Head | Tail:
        own, units = self.job.settings, list(self.job.units)
        kind = Tail if cut == len(units) else Head
        optimizer = factory_of(own, self.job.optimizer)
        return kind(units[:cut], optimizer, seed=own.seed, device=self.index)

    async def _together(
        self, link: Link, head: Head, parts: list[MicroBatch], at: tuple[int, int], returns: bool
    ) -> None:
        """Run an iteration with the server, in the order of the schedule: F F F ... B B B U."""
        _, step = at
        for task in one_iteration(DEVICE, step, len(parts), returns=returns):
            micro, part = task.micro, parts[task.micro]
            if task.kind == "forward":
                with self.log.task(DEVICE, "forward", step, micro):
                    out = await self.pool.run(head.forward, part.x, step, micro)
                await link.send(Message("act", *at, micro, tensors={"x": out, "y": part.y}))
            elif task.kind == "backward":
                back = await link.receive("grad")
                if back.place != (*at, micro):
                    due = Message("grad", *at, micro).name
                    raise WireError(f"{back.name} came where {due} was due")
                self.log.arrival(DOWNLINK, back)
                with self.log.task(DEVICE, "backward", step, micro):
                    await self.pool.run(head.backward, back.tensors["x"], micro)
            else:
                with self.log.task(DEVICE, "update", step):
                    await self.pool.run(head.update)

    def _alone(self, whole: Tail, parts: list[MicroBatch], step: int) -> tuple[float, int]:
        loss, right = 0.0, 0
        for micro, part in enumerate(parts):
            start_s = time.perf_counter()
            made = whole.forward_backward(part.x, part.y, part.share, step, micro, returns=False)
            self.log.forward_backward(DEVICE, step, micro, start_s, made.forward_s)
            loss, right = loss + made.loss, right + made.right
        sound(whole, loss)
        with self.log.task(DEVICE, "update", step):
            whole.update()
        return loss, right

    def _save(self, key: tuple[int, int], half: Head | Tail) -> None:
        self.saved = kept(self.saved, key, half)
        if self.path is not None:
            rows = [[list(own), state] for own, state in self.saved.items()]
            checkpoint.save(self.path, {"job": self.name, "saved": rows})

    def _load(self) -> None:
        if self.path is None or not self.path.exists():
            return
        state = checkpoint.load(self.path)
        if state.get("job") == self.name:  # one of another job is of no use here
            self.saved = {tuple(key): value for key, value in state["saved"]}
