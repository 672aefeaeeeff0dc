"""The server's side of one device: its tail, and how far the open iteration is.

An iteration is complete on the server when its last gradient is on the way, but it counts only when
the device's next message shows that the device has it: until then both sides can drop it.

    act step 4 ...  ->  gradients  |  act step 5: step 4 counts, update  |  ...
                    link cut here: the device says which step it has done, and both go on from there
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from alkit.schedule.timeline import Interval
from alkit.split.channel import Channel
from alkit.split.device import weights
from alkit.split.expect import Due, Expect, sound
from alkit.split.halves import Pass, Tail
from alkit.split.log import LaneLog, intervals
from alkit.split.schedule import SERVER, UPLINK
from alkit.split.settings import Settings
from alkit.split.stream import step_sizes
from alkit.split.wire import Message

__all__ = ["Contribution", "Order", "Replica", "Turns"]


@dataclass(frozen=True)
class Order:
    """What a device does in a round.

    Attributes:
        cut, micro: units on the device, and micro-batches an iteration.
        steps: of the device's stream.
        fresh: both optimisers begin anew, for one side does not know its own any more.
    """

    cut: int
    micro: int
    steps: range
    fresh: bool


@dataclass
class Contribution:
    """What a device and its tail made of a round."""

    state: dict[str, Tensor]
    samples: int
    right: int
    losses: list[float]
    intervals: list[Interval] = field(default_factory=list)


@contextmanager
def _nobody_else(step: int) -> Iterator[None]:
    yield


Turns = Callable[[int], Any]  # a context in which the tail is the device's own, for a step


class Replica:
    """One device's tail.

    Args:
        index: number of the device.
        samples: that it has.
        expect: what its messages are measured by.
        tail: makes a tail for a cut; a shared one is the same for all devices.
        offset_s: server's clock minus the device's.
    """

    def __init__(
        self,
        index: int,
        samples: int,
        settings: Settings,
        expect: Expect,
        tail: Callable[[int, int], Tail],
    ) -> None:
        self.index, self.samples, self.settings, self.make_tail = index, samples, settings, tail
        self.expect = expect
        self.tail: Tail | None = None
        self.cut = -1
        self.offset_s = 0.0
        self.round = -1
        self.order: Order | None = None
        self.steps_done = 0
        self.pending = False  # all gradients of step `steps_done` are on the way
        self.losses: dict[int, float] = {}
        self.right: dict[int, int] = {}
        self.seen: list[Interval] = []
        self.log = LaneLog()
        self.saved: dict[tuple[int, int], Any] = {}  # optimiser by round and cut

    def begin(
        self, round_: int, order: Order, state: Mapping[str, Tensor], shared: Any = None
    ) -> None:
        """Set up for a round from its beginning.

        Args:
            shared: state of the optimiser of a tail that devices take turns at.
        """
        if self.tail is None or order.cut != self.cut:
            self.tail, self.cut = self.make_tail(self.index, order.cut), order.cut
        if self.settings.method == "split":
            self.tail.drop()
            self.tail.load(state)
            self.tail.load_optimizer(shared)
        elif not self.settings.shared_tail:
            self.tail.drop()
            self.tail.load(state)
            key = round_, order.cut
            self.tail.load_optimizer(None if order.fresh else self.saved[key])
            self.save(key)
        self.round, self.order, self.steps_done = round_, order, order.steps.start
        self.pending = False
        self.losses, self.right, self.seen = {}, {}, []
        self.log.take()

    def save(self, key: tuple[int, int]) -> None:
        """Keep the optimiser as of a round's beginning."""
        assert self.tail is not None
        saved = self.saved | {key: self.tail.optimizer_state()}  # a checkpoint may be reading it
        self.saved = {k: v for k, v in saved.items() if k[0] >= key[0] - 1}

    def can_resume(self, round_: int, step: int) -> bool:
        """Whether a device that has done `step` steps of a round can go on from there."""
        if self.settings.shared_tail or self.settings.immediate or round_ != self.round:
            return False
        if self.order is not None and self.order.cut == self.settings.units:
            return True  # there is no tail
        return step == self.steps_done or (self.pending and step == self.steps_done + 1)

    def resume(self, step: int) -> None:
        """Bring the tail to where the device is, see `can_resume`."""
        assert self.tail is not None
        if self.cut == self.settings.units:
            self.steps_done = step
        elif self.pending and step == self.steps_done + 1:
            self._count()
        else:
            self.tail.drop()
            self.pending = False
        self.log.take()  # what was cut off belongs to no iteration

    def serve(self, channel: Channel, turns: Turns = _nobody_else) -> Contribution:
        """Run the device's round to its end.

        Args:
            turns: for a shared tail, see `Turns`.
        Raises:
            ChannelLost: the device has gone; `can_resume` tells from where it may go on.
            WireError: it sent what is not due, or nonsense; see `Expect`.
        """
        assert self.tail is not None
        assert self.order is not None
        if self.order.cut < self.settings.units:
            for step in range(self.steps_done, self.order.steps.stop):
                with turns(step):
                    self._iteration(channel, step)
        steps, micro = self.order.steps, self.order.micro
        count = sum(sum(step_sizes(self.settings, self.samples, at, micro)) for at in steps)
        due = Due("done", self.round, steps.stop, samples=count, steps=len(steps), cut=self.cut)
        done = self.expect.receive(channel, due, self.settings.heartbeat_s)
        self.log.arrival(UPLINK, done, self.offset_s)
        if self.pending:
            self._count()
        return self._contribution(done)

    def _iteration(self, channel: Channel, step: int) -> None:
        assert self.tail is not None
        assert self.order is not None
        sizes = step_sizes(self.settings, self.samples, step, self.order.micro)
        self.losses[step], self.right[step] = 0.0, 0
        self.tail.device = self.index
        try:
            for micro, size in enumerate(sizes):
                due = Due("act", self.round, step, micro, self.cut, size, size / sum(sizes))
                message = self.expect.receive(channel, due, self.settings.heartbeat_s)
                self.log.arrival(UPLINK, message, self.offset_s)
                if micro == 0 and self.pending:
                    self._count()
                self._micro_batch(channel, message, due.share)
            sound(self.tail, self.losses[step])
        except BaseException:
            if self.settings.shared_tail:
                self.tail.drop()  # before it is somebody else's turn
            raise
        if self.settings.immediate or self.settings.shared_tail:
            self.tail.update()
            self.steps_done = step + 1
        else:
            self.pending = True

    def _micro_batch(self, channel: Channel, message: Message, share: float) -> None:
        assert self.tail is not None
        assert self.order is not None
        x, y = message.tensors["x"], message.tensors["y"]
        micro, step = message.micro, message.step
        start_s = time.perf_counter()
        returns = self.order.cut > 0
        weight = 1.0 if self.settings.immediate else share
        made = self.tail.forward_backward(x, y, weight, step, micro, returns=returns)
        self.log.forward_backward(SERVER, step, micro, start_s, made.forward_s)
        if self.settings.immediate:
            made = self._step_now(made, share)
        if returns:
            assert made.gradient is not None
            place = {"round": self.round, "step": step, "micro": micro}
            channel.send(Message("grad", **place, tensors={"x": made.gradient}))
        self.losses[step] += made.loss
        self.right[step] += made.right

    def _step_now(self, made: Pass, share: float) -> Pass:
        """Step with a micro-batch's mean loss; the device still gets its share of the batch's."""
        assert self.tail is not None
        sound(self.tail, made.loss)
        self.tail.update()
        gradient = None if made.gradient is None else made.gradient * share
        return made._replace(gradient=gradient, loss=made.loss * share)

    def _count(self) -> None:
        """The device has the open iteration: it counts on both sides."""
        assert self.tail is not None
        with self.log.task(SERVER, "update", self.steps_done):
            self.tail.update()
        self.steps_done += 1
        self.pending = False
        self.seen += intervals(self.log.take(), self.index)

    def _contribution(self, done: Message) -> Contribution:
        assert self.tail is not None
        assert self.order is not None
        losses = [self.losses[step] for step in self.order.steps if step in self.losses]
        right = sum(self.right.values())
        if self.order.cut == self.settings.units:
            losses, right = done.tensors["losses"].tolist(), int(done.values["right"])
        seen = self.seen + intervals(self.log.take(), self.index)
        seen += intervals(done.tensors["intervals"], self.index, self.offset_s)
        if not self.settings.shared_tail:
            self.save((self.round + 1, self.order.cut))
        state = {**weights(done), **self.tail.state()}
        return Contribution(state, int(done.values["samples"]), right, losses, seen)
