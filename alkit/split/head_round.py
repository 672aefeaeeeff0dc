"""The device's side of its round: iterations of its head, or of the whole network.

load F F F . . . B B B U      what is between F and B is in `alkit.split.schedule`
"""

import time
from collections.abc import Callable, Iterable

import torch

from alkit.split.answers import receive
from alkit.split.channel import Channel
from alkit.split.halves import Head, Tail
from alkit.split.log import LaneLog
from alkit.split.schedule import DEVICE, DOWNLINK, one_iteration
from alkit.split.stream import MicroBatch, Stream
from alkit.split.wire import Message, WireError, as_weights

__all__ = ["HeadRound"]

Shown = Callable[[range], Iterable[int]]  # steps, with a bar for whoever looks on


class HeadRound:
    """One round of a device.

    Args:
        start: what the server says of it.
        half: the device's units: a tail if it has the whole network.
        stream: its samples.
        log: of its lanes.
    """

    def __init__(self, start: Message, half: Head | Tail, stream: Stream, log: LaneLog) -> None:
        self.number, self.cut = start.round, int(start.values["cut"])
        self.half, self.stream, self.log = half, stream, log
        self.losses: list[float] = []
        self.right = self.samples = 0
        self.go_on(start)

    def go_on(self, start: Message) -> None:
        """Do the steps that the server says."""
        self.micro = int(start.values["micro"])
        self.steps_done, self.last = int(start.values["step"]), int(start.values["last"])

    def run(self, channel: Channel, shown: Shown) -> None:
        """Do the steps that are left.

        Raises:
            ChannelLost: the server has gone.
            WireError: what came is not what was due.
        """
        for step in shown(range(self.steps_done, self.last)):
            with self.log.task(DEVICE, "load", step):
                parts = list(self.stream.step(step, self.micro))
            if isinstance(self.half, Tail):
                self._alone(self.half, parts, step)
            else:
                self._together(channel, self.half, parts, step)
            self.steps_done = step + 1
            self.samples += sum(len(part.y) for part in parts)

    def done(self) -> Message:
        """Return what hands the round in."""
        values = {"samples": self.samples, "right": self.right, "loss": sum(self.losses)}
        losses = torch.tensor(self.losses, dtype=torch.float64)
        tensors = as_weights(self.half.state())
        tensors |= {"losses": losses, "intervals": self.log.take()}
        return Message("done", self.number, self.last, values=values, tensors=tensors)

    def _alone(self, whole: Tail, parts: list[MicroBatch], step: int) -> None:
        loss = 0.0
        for micro, part in enumerate(parts):
            start_s = time.perf_counter()
            made = whole.forward_backward(part.x, part.y, part.share, step, micro, returns=False)
            self.log.forward_backward(DEVICE, step, micro, start_s, made.forward_s)
            loss, self.right = loss + made.loss, self.right + made.right
        with self.log.task(DEVICE, "update", step):
            whole.update()
        self.losses.append(loss)

    def _together(self, channel: Channel, head: Head, parts: list[MicroBatch], step: int) -> None:
        patience_s = self.stream.settings.heartbeat_s
        for task in one_iteration(DEVICE, step, len(parts), returns=self.cut > 0):
            micro, part = task.micro, parts[task.micro]
            place = self.number, step, micro
            if task.kind == "forward":
                with self.log.task(DEVICE, "forward", step, micro):
                    out = head.forward(part.x, step, micro)
                sent = {"x": out, "y": part.y}
                channel.send(Message("act", *place, values={"share": part.share}, tensors=sent))
            elif task.kind == "backward":
                message = receive(channel, patience_s, "grad")
                if (message.round, message.step, message.micro) != place:
                    due = Message("grad", *place).name
                    raise WireError(f"{message.name} came where {due} was due")
                self.log.arrival(DOWNLINK, message)
                with self.log.task(DEVICE, "backward", step, micro):
                    head.backward(message.tensors["x"], micro)
            else:
                with self.log.task(DEVICE, "update", step):
                    head.update()
