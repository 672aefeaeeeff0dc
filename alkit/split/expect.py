"""What a run expects of each message that a device sends, checked before it touches anything.

    hello    numbers of rounds and cuts        act    features of this cut's shape and type, finite;
    clock    a finite offset                          labels below the classes
    load     so many bytes                     done   weights by name, shape and type, finite;
    profile  the network's units, finite              losses, intervals; samples as known

Whoever sends something else is left out of the round, with the sentence that is raised here.
"""

import copy
import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from alkit.layers import evaluating
from alkit.split.channel import Channel
from alkit.split.halves import Tail, state_of
from alkit.split.log import intervals
from alkit.split.profile import LOAD_BYTES, Machine
from alkit.split.wire import STATE, Message, WireError

__all__ = ["Due", "Expect", "sound"]

MOST = 2**31  # of a number of rounds, steps or micro-batches
LONG_S = 1e10  # of a clock
LARGE = 1e15  # of seconds, bytes and bit/s in a profile
ALIVE = ("load", "profile", "act", "done")  # a device that computes may show that it lives
DIVERGED = "is not finite: nonsense, or the training has diverged, then lower lr"


class Due(NamedTuple):
    """The message that comes next from a device.

    Attributes:
        kind, round, step, micro: which it is.
        cut: units on the device.
        samples: in the micro-batch, or in the whole round.
        share: of the batch's samples in the micro-batch.
        steps: of the round.
    """

    kind: str
    round: int = 0
    step: int = 0
    micro: int = 0
    cut: int = 0
    samples: int = 0
    share: float = 1.0
    steps: int = 0


class Expect:
    """What the messages of one run are measured by.

    Args:
        units: the whole network, which stays as it is.
        example: one sample's input (1, ...), as the network takes it.
    """

    def __init__(self, units: Sequence[nn.Module], example: Tensor) -> None:
        self.units = len(units)
        x, self.features = example, [(example.shape[1:], example.dtype)]
        for unit in copy.deepcopy(list(units)):
            with evaluating(unit), torch.no_grad():
                x = unit(x)
            self.features.append((x.shape[1:], x.dtype))
        self.classes = x.shape[-1]
        self.state = {name: (own.shape, own.dtype) for name, own in state_of(units).items()}

    def receive(self, channel: Channel, due: Due, limit_s: float | None) -> Message:
        """Return the message that is due.

        Args:
            limit_s: seconds to wait for it, or for the next heartbeat where they are allowed.
        Raises:
            WireError: another one came, or one that is wrong; says what, and what was due.
            ChannelLost: the device has gone.
        """
        message = channel.receive(limit_s)
        while message.kind == "heartbeat" and due.kind in ALIVE:
            message = channel.receive(limit_s)
        self.check(message, due)
        return message

    def check(self, message: Message, due: Due) -> None:
        """Compare a message with the one that is due.

        Raises:
            WireError: they differ.
        """
        if (message.kind, message.round, message.step, message.micro) != due[:4]:
            placed = Message(*due[:4]).name if due.kind in ("act", "done") else f"a {due.kind}"
            raise WireError(f"{message.name} came where {placed} was due")
        if not math.isfinite(message.sent_s):
            raise WireError(f"{message.name} was sent at {message.sent_s} s, which is no time")
        look = getattr(self, f"_{due.kind}", None)
        if look is None:
            _only(message, ())
        else:
            look(message, due)

    def _hello(self, message: Message, due: Due) -> None:
        for key in ("round", "step"):
            _number(message, key, -1, MOST)
        saved = message.values["saved"]
        right = [
            isinstance(key, list) and len(key) == 2 and all(type(each) is int for each in key)
            for key in saved
        ]
        if not all(right):
            raise WireError(f"{message.name} says {saved!s:.60}: rounds and cuts are due")

    def _clock(self, message: Message, due: Due) -> None:
        _number(message, "offset_s", -LONG_S, LONG_S)

    def _load(self, message: Message, due: Due) -> None:
        _only(message, ("load",))
        _tensor(message, "load", (LOAD_BYTES,), torch.uint8)

    def _profile(self, message: Message, due: Due) -> None:
        _number(message, "down_bps", 1e-9, LARGE)
        try:
            machine = Machine.read(message.values["text"])
        except ValueError as error:
            raise WireError(f"{message.name} is refused: {error}") from error
        if len(machine.units) != self.units:
            raise WireError(f"a profile of {len(machine.units)} units; there are {self.units}")
        for unit in machine.units:
            for key, own in vars(unit).items():
                for number in own if isinstance(own, tuple) else (own,):
                    _between(f"{key} of the profile", number, 0, LARGE)
        if machine.memory_bytes is not None:
            _between("memory_bytes of the profile", machine.memory_bytes, 1, LARGE)

    def _act(self, message: Message, due: Due) -> None:
        shape, dtype = self.features[due.cut]
        _only(message, ("x", "y"))
        _tensor(message, "x", (due.samples, *shape), dtype)
        labels = _tensor(message, "y", (due.samples,), torch.int64)
        if not 0 <= int(labels.min()) <= int(labels.max()) < self.classes:
            raise WireError(
                f"labels of {message.name} go from {labels.min()} to {labels.max()}: they are"
                f" 0 to {self.classes - 1}"
            )
        _number(message, "share", due.share - 1e-9, due.share + 1e-9)

    def _done(self, message: Message, due: Due) -> None:
        own = {n: found for n, found in self.state.items() if int(n.split(".")[0]) < due.cut}
        _only(message, {"losses", "intervals", *(STATE + name for name in own)})
        for name, (shape, dtype) in own.items():
            _tensor(message, STATE + name, shape, dtype)
        steps = due.steps if due.cut == self.units else 0  # else the tail knows them
        _tensor(message, "losses", (steps,), torch.float64)
        seen = _tensor(message, "intervals", None, torch.float64)
        for row in intervals(seen, 0):
            _between(f"a step of {message.name}", row.batch, 0, MOST)
            _between(f"a micro-batch of {message.name}", row.micro, 0, MOST)
            _between(f"the bytes of {message.name}", row.bytes, 0, 2**62)
        _number(message, "samples", due.samples, due.samples)
        _number(message, "right", 0, due.samples)
        _number(message, "loss", -1e30, 1e30)


def sound(tail: Tail, loss: float) -> None:
    """See that a micro-batch leaves a tail usable: loss, gradients and buffers are finite.

    Finite features can be too large for that. What is not finite would be in all weights.

    Raises:
        WireError: something is not.
    """
    found = [own.grad for own in tail.units.parameters() if own.grad is not None]
    found += [own for own in tail.units.buffers() if own.is_floating_point()]
    norms = [torch.linalg.vector_norm(own) for own in found]
    if not math.isfinite(loss) or not all(bool(norm.isfinite()) for norm in norms):
        raise WireError(f"what the features lead to {DIVERGED}")


def _only(message: Message, names: Collection[str]) -> None:
    if extra := sorted(message.tensors.keys() - set(names)):
        raise WireError(f"{message.name} carries {extra[0]}, which is not due")


def _tensor(message: Message, name: str, shape: Sequence[int] | None, dtype: torch.dtype) -> Tensor:
    """Return a tensor of a message; None for any shape."""
    found = message.tensors.get(name)
    if found is None:
        raise WireError(f"{message.name} lacks {name}")
    wanted = tuple(found.shape if shape is None else shape)
    if tuple(found.shape) != wanted or found.dtype != dtype:
        raise WireError(
            f"{name} of {message.name} is {tuple(found.shape)} of {found.dtype} where {wanted} of"
            f" {dtype} is due"
        )
    if not found.isfinite().all():
        raise WireError(f"{name} of {message.name} {DIVERGED}")
    return found


def _number(message: Message, name: str, low: float, high: float) -> None:
    _between(f"{name} of {message.name}", message.values[name], low, high)


def _between(name: str, value: Any, low: float, high: float) -> None:
    """Not even a number of 400 digits gets past, for nothing is made a float."""
    if type(value) not in (int, float) or not low <= value <= high:
        allowed = f"it is {low}" if low == high else f"{low} to {high} is allowed"
        raise WireError(f"{name} is {value!r:.40}: {allowed}")
