"""A device: trains its head, and survives a lost link, a restarted server and, with a folder, its
own end.

    connect -> hello -> welcome -> probes -> (start -> iterations -> done) a round -> bye

What a device brings back is told in its hello: `step` (the live head has done so many steps of
`round`) and `saved` (the rounds at whose beginning its optimiser is known). The server decides what
of it can be used.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from tqdm.auto import tqdm

from alkit.engine import checkpoint
from alkit.engine.caller import CallerState
from alkit.engine.local import operator_threads
from alkit.engine.optimizers import Factory
from alkit.split.answers import Refused, receive, told_why
from alkit.split.channel import Channel, ChannelLost, HandshakeFailed, beating
from alkit.split.greeting import PATIENCE_S, compare_clocks, say_profile
from alkit.split.halves import Head, Saved, Tail, factory_of, kept
from alkit.split.head_round import HeadRound
from alkit.split.log import LaneLog
from alkit.split.profile import Machine, measure
from alkit.split.schedule import DOWNLINK
from alkit.split.settings import Settings
from alkit.split.stream import Stream
from alkit.split.wire import Message, WireError

__all__ = ["Device", "Job", "Refused"]

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
        prepare: makes the job from what the server tells, which is names and numbers.
        name: of the job; the server refuses a device of another one.
        network: fingerprints of its units, with spaces between, which the server compares with its
            own; "" in one process, where all have the same units.
        folder: for its optimiser's state, so that it can go on after its own end; default none.
        retries: attempts to connect again before it gives up; the count starts anew with each
            round that is done.
        pause_s: seconds between attempts.
        memory_bytes: that training may take, for the planner; None for enough.
        threads: operator threads; default the settings'.
        progress: show a bar a round.
    """

    def __init__(
        self,
        index: int,
        prepare: Callable[[dict[str, Any]], Job],
        *,
        name: str = "",
        network: str = "",
        folder: Path | None = None,
        retries: int = 20,
        pause_s: float = 0.5,
        memory_bytes: int | None = None,
        threads: int | None = None,
        progress: bool = False,
    ) -> None:
        self.index, self.prepare, self.name, self.network = index, prepare, name, network
        self.caller = CallerState.here()
        self.path = None if folder is None else Path(folder) / f"device-{index}.pt"
        self.retries, self.pause_s, self.memory_bytes = retries, pause_s, memory_bytes
        self.threads, self.progress = threads, progress
        self.job: Job | None = None
        self.work: HeadRound | None = None  # its newest round
        self.saved: Saved = {}
        self.log = LaneLog()
        self.tries = 0
        self.machine: Machine | None = None  # measured when it is asked for

    def run(self, connect: Callable[[], Channel]) -> dict[str, Tensor]:
        """Train to the end, and return the final weights of the own units.

        Args:
            connect: opens a channel to the server.
        Raises:
            ChannelLost: no server after all retries.
            Refused, HandshakeFailed: the server does not want this device, or sent what is no
                message; or one side does not believe the other.
        """
        self._load()
        while True:
            try:
                channel = connect()
                try:
                    return self._session(channel)
                except ChannelLost:
                    told_why(channel)
                    raise
                finally:
                    channel.close()
            except WireError as error:
                raise Refused(f"device {self.index}: the server sent nonsense: {error}") from error
            except (Refused, HandshakeFailed):
                raise
            except (ChannelLost, OSError) as error:
                if self.work is not None:
                    self.work.half.drop()
                self.tries += 1
                if self.tries > self.retries:
                    error.add_note(f"device {self.index} gave up after {self.retries} retries")
                    raise
                log.info("device %d: %s; trying again", self.index, error)
                time.sleep(self.pause_s)

    def _session(self, channel: Channel) -> dict[str, Tensor]:
        """Say hello, do what the server says, and return the final weights."""
        number, step = (-1, -1) if self.work is None else (self.work.number, self.work.steps_done)
        hello = {"device": self.index, "job": self.name, "network": self.network}
        hello |= {"saved": [list(key) for key in self.saved]}
        channel.send(Message("hello", values=hello | {"round": number, "step": step}))
        welcome = receive(channel, PATIENCE_S, "welcome")
        if self.job is None:
            self.job = self.prepare(dict(welcome.values["job"]))
        job, threads = self.job, self.threads or self.job.settings.threads
        with operator_threads(threads), self.caller.training():
            compare_clocks(channel, int(welcome.values["probes"]))
            with beating(channel, job.settings.heartbeat_s):
                if repeats := int(welcome.values["profile"]):
                    say_profile(channel, lambda: self._profile(job, repeats, threads))
                while (start := receive(channel, None, "start", "bye")).kind == "start":
                    self._round(channel, job, start)
        return self._final(start)

    def _profile(self, job: Job, repeats: int, threads: int) -> Machine:
        if self.machine is None:
            [part] = job.stream.step(0, 1)
            timed = partial(measure, repeats=repeats, threads=threads)
            self.machine = timed(job.units, part.x, part.y, memory_bytes=self.memory_bytes)
        return self.machine

    def _round(self, channel: Channel, job: Job, start: Message) -> None:
        """Do a round, or what is left of it, and hand it in."""
        if self.work is not None and start.values["resume"]:
            self.work.go_on(start)
        else:
            self.work = self._begun(job, start)
        work = self.work

        def shown(steps: range) -> Iterable[int]:
            name = f"device {self.index}, round {work.number}"
            return tqdm(steps, desc=name, disable=not self.progress, leave=False)

        work.run(channel, shown)
        done = work.done()
        self._save((work.number + 1, work.cut), work.half)
        channel.send(done)
        self.tries = 0

    def _begun(self, job: Job, start: Message) -> HeadRound:
        """Take over the weights of a round's beginning."""
        cut, fresh = int(start.values["cut"]), bool(start.values["fresh"])
        work = self.work
        half = work.half if work is not None and work.cut == cut else self._half(job, cut)
        half.load(start.weights)
        key = start.round, cut
        if not fresh and key not in self.saved:
            raise WireError(f"no optimiser of round {start.round} and cut {cut} is known here")
        factor = job.settings.factor(start.round)
        half.load_optimizer(None if fresh else self.saved[key], factor)
        self._save(key, half)
        self.log.take()
        self.log.arrival(DOWNLINK, start)
        return HeadRound(start, half, job.stream, self.log)

    def _half(self, job: Job, cut: int) -> Head | Tail:
        settings, units = job.settings, list(job.units)
        kind = Tail if cut == len(units) else Head
        optimizer = factory_of(settings, job.optimizer)
        return kind(units[:cut], optimizer, seed=settings.seed, device=self.index)

    def _final(self, bye: Message) -> dict[str, Tensor]:
        if self.work is not None and self.work.half.units:
            self.work.half.load(bye.weights)
        if self.path is not None:
            self.path.unlink(missing_ok=True)  # of no use for another run
        return bye.weights

    def _save(self, key: tuple[int, int], half: Head | Tail) -> None:
        self.saved = kept(self.saved, key, half)
        if self.path is not None:
            rows = [[list(k), v] for k, v in self.saved.items()]
            checkpoint.save(self.path, {"job": self.name, "saved": rows})

    def _load(self) -> None:
        if self.path is None or not self.path.exists():
            return
        state = checkpoint.load(self.path)
        if state.get("job") == self.name:  # one of another job is of no use here
            self.saved = {tuple(key): value for key, value in state["saved"]}
