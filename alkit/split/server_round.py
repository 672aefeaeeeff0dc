"""A device's round at the server, top to bottom: start, iterations, done.

    server   start (weights) |      forward, backward, gradient ... update |      |
    device                   | F F F ...                          B B B U  | done |

A round that is cut off begins anew: until `done` is in, nothing of it counts.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from alkit.schedule.timeline import Interval
from alkit.split.check import sound, unit_of
from alkit.split.halves import Pass, Tail
from alkit.split.link import Link
from alkit.split.log import LaneLog, intervals
from alkit.split.rounds import Assignment, Contribution
from alkit.split.schedule import SERVER, UPLINK
from alkit.split.settings import Settings
from alkit.split.stream import step_sizes
from alkit.split.turns import Turns
from alkit.split.wire import Message, WireError

Compute = Callable[..., Awaitable[Any]]


@dataclass
class ServerRound:
    """One device's round at its tail.

    Args:
        device, samples: its number, and how many samples it has.
        state: of the network at the round's beginning.
        tail: a shared one is the same for all devices.
        compute: runs a function where computing does not stop the loop.
        turns: at a tail that devices share; None at one of its own.
        offset_s: server's clock minus the device's.
        seen: of the lanes so far.
    """

    number: int
    device: int
    samples: int
    order: Assignment
    state: Mapping[str, Tensor]
    tail: Tail
    settings: Settings
    compute: Compute
    turns: Turns | None
    offset_s: float
    log: LaneLog = field(default_factory=LaneLog)
    seen: list[Interval] = field(default_factory=list)

    async def run(self, link: Link) -> Contribution:
        """Run the round from its beginning.

        Raises:
            Lost: the device has gone.
            WireError: it sent what is not due.
            FloatingPointError: the training has diverged.
        """
        own = self.order
        values = {"cut": own.cut, "micro": own.micro, "fresh": own.fresh}
        values |= {"first": own.steps.start, "last": own.steps.stop}
        head = {name: tensor for name, tensor in self.state.items() if unit_of(name) < own.cut}
        await link.send(Message("start", self.number, values=values, tensors=head))
        alone, losses, right = own.cut == self.settings.units, list[float](), 0
        for step in () if alone else own.steps:
            async with self._turn(step - own.steps.start):
                loss, hits = await self._iteration(link, step)
            losses, right = [*losses, loss], right + hits
            self._take(self.log.take())
        done = await link.receive("done")
        self.log.arrival(UPLINK, done, self.offset_s)
        samples = [sum(self._sizes(step)) for step in own.steps]
        if alone:
            losses, right = done.tensors["losses"].tolist(), done.values["right"]
        self._take(self.log.take())
        self.seen += intervals(done.tensors["intervals"], self.device, self.offset_s)
        state = {name: own for name, own in done.tensors.items() if name in self.state}
        return Contribution(state | self.tail.state(), samples, right, losses, self.seen)

    def _take(self, rows: Tensor) -> None:
        self.seen += intervals(rows, self.device)

    def _turn(self, place: int) -> AbstractAsyncContextManager[None]:
        drawn = self.settings.rules.tail == "drawn"
        if self.turns is None or not drawn:
            return nullcontext()
        return self.turns.turn(place, self.device)

    def _sizes(self, step: int) -> Sequence[int]:
        return step_sizes(self.settings, self.samples, step, self.order.micro)

    async def _iteration(self, link: Link, step: int) -> tuple[float, int]:
        """Receive activations, send gradients, update; return the loss and how many were right."""
        sizes, loss, right = self._sizes(step), 0.0, 0
        self.tail.device = self.device
        async with self._dropped_at_an_error():
            for micro, size in enumerate(sizes):
                act, place = await link.receive("act"), (self.number, step, micro)
                self.log.arrival(UPLINK, act, self.offset_s)
                if act.place != place:
                    raise WireError(f"{act.name} came where {Message('act', *place).name} was due")
                made = await self.compute(self._pass, act, size / sum(sizes))
                if made.gradient is not None:
                    await link.send(Message("grad", *place, tensors={"x": made.gradient}))
                loss, right = loss + made.loss, right + made.right
            sound(self.tail, loss)
        with self.log.task(SERVER, "update", step):
            await self.compute(self.tail.update)
        return loss, right

    def _pass(self, act: Message, share: float) -> Pass:
        """Return what the tail made of a micro-batch, weighted by its share of the batch."""
        start_s = time.perf_counter()
        made = self.tail.forward_backward(
            act.tensors["x"],
            act.tensors["y"],
            share,
            act.step,
            act.micro,
            returns=self.order.cut > 0,
        )
        self.log.forward_backward(SERVER, act.step, act.micro, start_s, made.forward_s)
        return made

    @asynccontextmanager
    async def _dropped_at_an_error(self) -> AsyncIterator[None]:
        """Forget an iteration that is cut off, before it is somebody else's turn."""
        try:
            yield
        except BaseException:
            self.tail.drop()
            raise
