"""A device: trains its head, and survives a lost link, a restarted server and, with a folder, its
own end.

    connect -> hello -> welcome -> probes -> (start -> iterations -> done) a round -> bye

What a device brings back is told in its hello: `step` (the live head has done so many steps of
`round`) and `saved` (the rounds at whose beginning its optimiser is known). The server decides what
of it can be used.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from alkit.engine import checkpoint
from alkit.engine.caller import CallerState
from alkit.engine.local import operator_threads
from alkit.split.channel import Channel, ChannelLost, HandshakeFailed, beating
from alkit.split.greeting import speed
from alkit.split.halves import Head, Tail, kept, sgd
from alkit.split.log import LaneLog
from alkit.split.profile import LOAD_BYTES, Machine, measure
from alkit.split.schedule import DEVICE, DOWNLINK, one_iteration
from alkit.split.settings import Settings
from alkit.split.stream import Stream
from alkit.split.wire import KINDS, Message, WireError, as_weights

__all__ = ["Device", "Job", "Refused"]

log = logging.getLogger(__name__)


class Refused(ConnectionError):
    """The server does not want this device; trying again would not help."""


@dataclass
class Job:
    """What a device trains.

    Attributes:
        units: the whole network; the device trains those below the cut.
        stream: its samples.
    """

    settings: Settings
    units: Sequence[nn.Module]
    stream: Stream


class Device:
    """One device.

    Args:
        index: its number, from 0.
        prepare: makes the job from what the server tells, which is names and numbers.
        name: of the job; the server refuses a device of another one.
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
        folder: Path | None = None,
        retries: int = 20,
        pause_s: float = 0.5,
        memory_bytes: int | None = None,
        threads: int | None = None,
        progress: bool = False,
    ) -> None:
        self.index, self.prepare, self.name = index, prepare, name
        self.caller = CallerState.here()
        self.path = None if folder is None else Path(folder) / f"device-{index}.pt"
        self.retries, self.pause_s, self.memory_bytes = retries, pause_s, memory_bytes
        self.threads, self.progress = threads, progress
        self.job: Job | None = None
        self.half: Head | Tail | None = None  # a tail if it has the whole network
        self.round, self.steps_done = -1, -1
        self.first, self.last = 0, 0
        self.cut, self.micro = -1, 1
        self.saved: dict[tuple[int, int], Any] = {}  # by round and cut
        self.losses: list[float] = []
        self.right = self.samples = 0
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
                    _told_why(channel)
                    raise
                finally:
                    channel.close()
            except WireError as error:
                raise Refused(f"device {self.index}: the server sent nonsense: {error}") from error
            except (Refused, HandshakeFailed):
                raise
            except (ChannelLost, OSError) as error:
                if self.half is not None:
                    self.half.drop()
                self.tries += 1
                if self.tries > self.retries:
                    error.add_note(f"device {self.index} gave up after {self.retries} retries")
                    raise
                log.info("device %d: %s; trying again", self.index, error)
                time.sleep(self.pause_s)

    def _session(self, channel: Channel) -> dict[str, Tensor]:
        live = self.half is not None and self.steps_done >= 0
        hello = {"device": self.index, "job": self.name, "saved": [list(key) for key in self.saved]}
        place = {"round": self.round, "step": self.steps_done if live else -1}
        channel.send(Message("hello", values=hello | place))
        welcome = _expect(channel.receive(60.0), "welcome")
        if self.job is None:
            self.job = self.prepare(dict(welcome.values["job"]))
        with operator_threads(self._threads), self.caller.training():
            self._compare_clocks(channel, int(welcome.values["probes"]))
            with beating(channel, self.job.settings.heartbeat_s):
                return self._rounds(channel, int(welcome.values["profile"]))

    def _rounds(self, channel: Channel, repeats: int) -> dict[str, Tensor]:
        """Do what the server says, to the end; `repeats` of the profile before, if it wants one."""
        if repeats:
            self._profile(channel, repeats)
        while True:
            order = _receive(channel, None, "start", "bye")
            if order.kind == "bye":
                return self._final(order)
            self._begin(order)
            steps = range(self.steps_done, self.last)
            name = f"device {self.index}, round {order.round}"
            for step in tqdm(steps, desc=name, disable=not self.progress, leave=False):
                self._iteration(channel, step)
            self._end_round(channel)

    def _compare_clocks(self, channel: Channel, probes: int) -> None:
        """Tell the server its clock minus ours, as the fastest exchange of four times has it."""
        best = float("inf"), 0.0
        for _ in range(probes):
            t0 = time.perf_counter()
            channel.send(Message("probe"))
            reply = _expect(channel.receive(60.0), "probe_reply")
            t1, t2, t3 = reply.values["t1"], reply.values["t2"], time.perf_counter()
            best = min(best, (t3 - t0 - (t2 - t1), (t1 - t0 + t2 - t3) / 2))
        channel.send(Message("clock", values={"offset_s": best[1]}))

    def _profile(self, channel: Channel, repeats: int) -> None:
        """Send a load, receive one, and tell what units and downlink take."""
        assert self.job is not None
        load = torch.zeros(LOAD_BYTES, dtype=torch.uint8)
        channel.send(Message("load", tensors={"load": load}))
        down_bps = speed(_expect(channel.receive(60.0), "load"))
        if self.machine is None:
            [part] = self.job.stream.step(0, 1)
            options = {"repeats": repeats, "threads": self._threads}
            options["memory_bytes"] = self.memory_bytes
            self.machine = measure(self.job.units, part.x, part.y, **options)
        values = {"text": self.machine.plain(), "down_bps": down_bps}
        channel.send(Message("profile", values=values))

    def _begin(self, order: Message) -> None:
        values = order.values
        self.first, self.last = int(values["first"]), int(values["last"])
        if not values["resume"]:
            self._take(order)
        self.round, self.steps_done = order.round, int(values["step"])
        self.micro = int(values["micro"])

    def _take(self, order: Message) -> None:
        """Take over the weights of a round's beginning."""
        cut, fresh = int(order.values["cut"]), bool(order.values["fresh"])
        if self.half is None or cut != self.cut:
            self._build(cut)
        assert self.half is not None
        self.half.load(order.weights)
        key = order.round, cut
        if not fresh and key not in self.saved:
            raise WireError(f"no optimiser of round {order.round} and cut {cut} is known here")
        self.half.load_optimizer(None if fresh else self.saved[key])
        self._save(key)
        self.losses, self.right, self.samples = [], 0, 0
        self.log.take()
        self.log.arrival(DOWNLINK, order)

    def _build(self, cut: int) -> None:
        assert self.job is not None
        settings, units = self.job.settings, list(self.job.units)
        whole = cut == len(units)
        optimizer = partial(sgd, lr=settings.lr, momentum=settings.momentum)
        options = {"seed": settings.seed, "device": self.index}
        self.half = (Tail if whole else Head)(units[:cut], optimizer, **options)
        self.cut = cut

    def _iteration(self, channel: Channel, step: int) -> None:
        assert self.job is not None
        with self.log.task(DEVICE, "load", step):
            parts = list(self.job.stream.step(step, self.micro))
        if isinstance(self.half, Tail):
            self._alone(self.half, parts, step)
        else:
            self._together(channel, parts, step)
        self.steps_done = step + 1
        self.samples += sum(len(part.y) for part in parts)

    def _alone(self, whole: Tail, parts: list[Any], step: int) -> None:
        loss = 0.0
        for micro, part in enumerate(parts):
            start_s = time.perf_counter()
            made = whole.forward_backward(part.x, part.y, part.share, step, micro, returns=False)
            self.log.forward_backward(DEVICE, step, micro, start_s, made.forward_s)
            loss, self.right = loss + made.loss, self.right + made.right
        with self.log.task(DEVICE, "update", step):
            whole.update()
        self.losses.append(loss)

    def _together(self, channel: Channel, parts: list[Any], step: int) -> None:
        head = self.half
        assert isinstance(head, Head)
        for task in one_iteration(DEVICE, step, len(parts), returns=self.cut > 0):
            part = parts[task.micro]
            if task.kind == "forward":
                with self.log.task(DEVICE, "forward", step, task.micro):
                    out = head.forward(part.x, step, task.micro)
                self._send(channel, "act", task, {"x": out, "y": part.y}, share=part.share)
            elif task.kind == "backward":
                message = _receive(channel, self._patience, "grad")
                _check_place(message, self.round, step, task.micro)
                self.log.arrival(DOWNLINK, message)
                with self.log.task(DEVICE, "backward", step, task.micro):
                    head.backward(message.tensors["x"], task.micro)
            else:
                with self.log.task(DEVICE, "update", step):
                    head.update()

    @property
    def _threads(self) -> int:
        assert self.job is not None
        return self.threads or self.job.settings.threads

    @property
    def _patience(self) -> float:
        assert self.job is not None
        return self.job.settings.heartbeat_s

    def _send(self, channel: Channel, kind: str, task: Any, tensors: Any, **values: Any) -> None:
        place = {"round": self.round, "step": task.batch, "micro": task.micro}
        channel.send(Message(kind, **place, values=values, tensors=tensors))

    def _end_round(self, channel: Channel) -> None:
        assert self.half is not None
        own = as_weights(self.half.state())
        more = {
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "intervals": self.log.take(),
        }
        values = {"samples": self.samples, "right": self.right, "loss": sum(self.losses)}
        self._save((self.round + 1, self.cut))
        channel.send(
            Message("done", round=self.round, step=self.last, values=values, tensors=own | more)
        )
        self.tries = 0

    def _final(self, order: Message) -> dict[str, Tensor]:
        if self.half is not None and self.half.units:
            self.half.load(order.weights)
        if self.path is not None:
            self.path.unlink(missing_ok=True)  # of no use for another run
        return order.weights

    def _save(self, key: tuple[int, int]) -> None:
        assert self.half is not None
        self.saved = kept(self.saved, key, self.half)
        if self.path is not None:
            rows = [[list(k), v] for k, v in self.saved.items()]
            checkpoint.save(self.path, {"job": self.name, "saved": rows})

    def _load(self) -> None:
        if self.path is None or not self.path.exists():
            return
        state = checkpoint.load(self.path)
        if state.get("job") == self.name:  # one of another job is of no use here
            self.saved = {tuple(key): value for key, value in state["saved"]}


def _told_why(channel: Channel) -> None:
    """Raise what the server said before the stream ended, which may still wait to be read.

    Raises:
        Refused: the server does not want this device.
    """
    with suppress(ChannelLost):
        while True:
            _expect(channel.receive(0.0), *KINDS)


def _receive(channel: Channel, limit_s: float | None, *kinds: str) -> Message:
    """Return the next message that is no heartbeat, see `_expect`; any may take `limit_s`."""
    while (message := channel.receive(limit_s)).kind == "heartbeat":
        pass
    return _expect(message, *kinds)


def _expect(message: Message, *kinds: str) -> Message:
    """Return the message if it is of one of the kinds.

    Raises:
        Refused: the other side says why it ends.
        WireError: another kind.
    """
    if message.kind == "error":
        raise Refused(str(message.values["text"]))
    if message.kind not in kinds:
        raise WireError(f"{message.name} came where {' or '.join(kinds)} was due")
    return message


def _check_place(message: Message, round_: int, step: int, micro: int) -> None:
    if (message.round, message.step, message.micro) != (round_, step, micro):
        raise WireError(
            f"{message.name} came where that of round {round_}, step {step}.{micro} was due"
        )
