"""The server's side of one device's round: its tail, and how far the open iteration is.

An iteration is complete on the server when its last gradient is on the way, but it counts only when
the device's next message shows that the device has it: until then both sides can drop it.

    act step 4 ...  ->  gradients  |  act step 5: step 4 counts, update  |  ...
                    link cut here: the device says which step it has done, and both go on from there
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from alkit.schedule.timeline import Interval
from alkit.split.channel import Channel
from alkit.split.expect import Due, Expect, sound
from alkit.split.halves import Pass, Tail
from alkit.split.log import intervals
from alkit.split.round import Assignment, Contribution
from alkit.split.schedule import SERVER, UPLINK
from alkit.split.settings import Settings
from alkit.split.stream import step_sizes
from alkit.split.turns import Turns
from alkit.split.wire import Message

if TYPE_CHECKING:
    from alkit.split.member import Member

__all__ = ["TailRound"]


class TailRound:
    """One device's round at its tail.

    Args:
        number: of the round.
        tail: a shared one is the same for all devices.
        expect: what the device's messages are measured by.
        turns: at the tail, step by step.
    """

    def __init__(
        self,
        member: "Member",
        number: int,
        assignment: Assignment,
        tail: Tail,
        settings: Settings,
        expect: Expect,
        turns: Turns,
    ) -> None:
        self.member, self.number, self.assignment = member, number, assignment
        self.tail, self.settings, self.expect, self.turns = tail, settings, expect, turns
        self.log = member.log
        self.log.take()
        self.steps_done = assignment.steps.start
        self.pending = False  # all gradients of step `steps_done` are on the way
        self.losses: dict[int, float] = {}
        self.right: dict[int, int] = {}
        self.seen: list[Interval] = []

    @property
    def alone(self) -> bool:
        """Whether the device has all units, and nothing is left for a tail."""
        return self.assignment.cut == self.settings.units

    def begin(self, state: Mapping[str, Tensor], handed: Any) -> None:
        """Set the tail up for the round's beginning.

        Args:
            state: of the network.
            handed: state of the optimiser of a tail that is handed on.
        """
        if self.settings.rules.tail == "drawn":
            return  # it was loaded when the round was opened, for all devices
        self.tail.drop()
        self.tail.load(state)
        if self.settings.rules.tail == "handed on":
            return self.tail.load_optimizer(handed, self.settings.factor(self.number))
        key = self.number, self.assignment.cut
        before = None if self.assignment.fresh else self.member.saved[key]
        self.tail.load_optimizer(before, self.settings.factor(self.number))
        self.member.keep(key, self.tail)

    def can_resume(self, number: int, step: int) -> bool:
        """Whether a device that has done `step` steps of a round can go on from there."""
        if self.settings.rules.shared or self.settings.immediate or number != self.number:
            return False
        return self.alone or step == self.steps_done or self._has_pending(step)

    def resume(self, step: int) -> None:
        """Bring the tail to where the device is, see `can_resume`."""
        if self.alone:
            self.steps_done = step
        elif self._has_pending(step):
            self._count()
        else:
            self.tail.drop()
            self.pending = False
        self.log.take()  # what was cut off belongs to no iteration

    def serve(self, channel: Channel) -> Contribution:
        """Run the device's round to its end.

        Raises:
            ChannelLost: the device has gone; `can_resume` tells from where it may go on.
            WireError: it sent what is not due, or nonsense; see `Expect`.
        """
        steps = self.assignment.steps
        if not self.alone:
            for step in range(self.steps_done, steps.stop):
                with self.turns(step):
                    self._iteration(channel, step)
        count = sum(sum(self._sizes(step)) for step in steps)
        more = {"samples": count, "steps": len(steps), "cut": self.assignment.cut}
        due = Due("done", self.number, steps.stop, **more)
        done = self._receive(channel, due)
        if self.pending:
            self._count()
        return self._contribution(done)

    def _has_pending(self, step: int) -> bool:
        """Whether the device has the iteration that does not count here yet."""
        return self.pending and step == self.steps_done + 1

    def _sizes(self, step: int) -> list[int]:
        return step_sizes(self.settings, self.member.samples, step, self.assignment.micro)

    def _receive(self, channel: Channel, due: Due) -> Message:
        message = self.expect.receive(channel, due, self.settings.heartbeat_s)
        self.log.arrival(UPLINK, message, self.member.offset_s)
        return message

    def _iteration(self, channel: Channel, step: int) -> None:
        self.losses[step], self.right[step] = 0.0, 0
        self.tail.device = self.member.index
        shared = self.settings.rules.shared
        try:
            self._micro_batches(channel, step)
            sound(self.tail, self.losses[step])
        except BaseException:
            if shared:
                self.tail.drop()  # before it is somebody else's turn
            raise
        if self.settings.immediate or shared:
            self.tail.update()
            self.steps_done = step + 1
        else:
            self.pending = True

    def _micro_batches(self, channel: Channel, step: int) -> None:
        sizes = self._sizes(step)
        for micro, size in enumerate(sizes):
            place = self.number, step, micro
            due = Due("act", *place, self.assignment.cut, size, size / sum(sizes))
            message = self._receive(channel, due)
            if micro == 0 and self.pending:
                self._count()
            made = self._pass(message, due.share)
            if made.gradient is not None:
                channel.send(Message("grad", *place, tensors={"x": made.gradient}))
            self.losses[step] += made.loss
            self.right[step] += made.right

    def _pass(self, message: Message, share: float) -> Pass:
        """Return what the tail made of a micro-batch, weighted by its share of the batch."""
        immediate = self.settings.immediate
        start_s = time.perf_counter()
        made = self.tail.forward_backward(
            message.tensors["x"],
            message.tensors["y"],
            1.0 if immediate else share,
            message.step,
            message.micro,
            returns=self.assignment.cut > 0,
        )
        self.log.forward_backward(SERVER, message.step, message.micro, start_s, made.forward_s)
        if not immediate:
            return made
        # the tail steps with the mean loss; the device still gets its share of the batch's
        sound(self.tail, made.loss)
        self.tail.update()
        gradient = None if made.gradient is None else made.gradient * share
        return made._replace(gradient=gradient, loss=made.loss * share)

    def _count(self) -> None:
        """The device has the open iteration: it counts on both sides."""
        with self.log.task(SERVER, "update", self.steps_done):
            self.tail.update()
        self.steps_done += 1
        self.pending = False
        self.seen += intervals(self.log.take(), self.member.index)

    def _contribution(self, done: Message) -> Contribution:
        cut, steps = self.assignment.cut, self.assignment.steps
        losses = [self.losses[step] for step in steps if step in self.losses]
        right = sum(self.right.values())
        if self.alone:
            losses, right = done.tensors["losses"].tolist(), int(done.values["right"])
        index = self.member.index
        seen = self.seen + intervals(self.log.take(), index)
        seen += intervals(done.tensors["intervals"], index, self.member.offset_s)
        if not self.settings.rules.shared:
            self.member.keep((self.number + 1, cut), self.tail)
        state = done.weights | self.tail.state()
        return Contribution(state, int(done.values["samples"]), right, losses, seen)
