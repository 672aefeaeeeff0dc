"""What a run expects of each message that a device sends, checked before it touches anything.

Whoever sends something else is left out of the round, with the sentence that is raised here.
"""

import copy
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from alkit.models.modes import evaluating
from alkit.split.channel import Channel
from alkit.split.halves import Tail, state_of
from alkit.split.log import intervals
from alkit.split.profile import LOAD_BYTES, Machine
from alkit.split.wire import STATE, Message, WireError

__all__ = ["Due", "Expect", "fingerprints", "sound"]

MOST = 2**31  # of rounds, steps, micro-batches
LARGE = 1e15  # of seconds, bytes and bit/s
ALIVE = ("load", "profile", "act", "done")  # a device that computes may show that it lives
DIVERGED = "is not finite: nonsense, or the training has diverged, then lower lr"
Wanted = tuple[Sequence[int] | None, torch.dtype]  # shape, None for any, and type


class Due(NamedTuple):
    """The message that comes next from a device, and what it is about."""

    kind: str
    round: int = 0
    step: int = 0
    micro: int = 0
    cut: int = 0
    samples: int = 0  # in the micro-batch, or in the whole round
    share: float = 1.0  # of the batch's samples
    steps: int = 0  # of the round


class Expect:
    """What the messages of one run are measured by.

    Args:
        units: the whole network, which stays as it is.
        example: one sample's input (1, ...), as the network takes it.
    """

    def __init__(self, units: Sequence[nn.Module], example: Tensor) -> None:
        self.units, x = len(units), example
        self.layouts = [_layout(unit) for unit in units]
        self.features = [(x.shape[1:], x.dtype)]  # at each cut, of a sample
        for at, unit in enumerate(copy.deepcopy(list(units))):
            taken = f"{tuple(x.shape)} of {x.dtype}"
            with evaluating(unit), torch.no_grad():
                try:
                    x = unit.cpu()(x)
                except RuntimeError as error:
                    raise ValueError(f"unit {at} does not take {taken}: {error}") from error
            if not isinstance(x, Tensor):
                raise ValueError(
                    f"unit {at} gives a {type(x).__name__}: split learning sends one tensor"
                    " from head to tail, so join the units that hand on more"
                )
            self.features.append((x.shape[1:], x.dtype))
        self.classes = x.shape[-1]
        self.state = {name: (own.shape, own.dtype) for name, own in state_of(units).items()}

    def differs(self, told: Sequence[str]) -> str:
        """Return what is different in the network of a device that tells its fingerprints."""
        if not told:
            return ""
        if len(told) != self.units:
            return f"it has {len(told)} units; here are {self.units}"
        pairs = enumerate(zip(told, self.layouts, strict=True))
        other = [(at, own) for at, (came, own) in pairs if came != _digest(own)]
        return f"unit {other[0][0]}, which is here: {other[0][1]:.500}" if other else ""

    def receive(self, channel: Channel, due: Due, limit_s: float | None) -> Message:
        """Return the message that is due.

        Args:
            limit_s: seconds to wait for it, or for the next heartbeat where they are allowed.
        Raises:
            WireError: see `check`.
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
            WireError: they differ; says what came, and what is allowed.
        """
        if (message.kind, message.round, message.step, message.micro) != due[:4]:
            placed = Message(*due[:4]).name if due.kind in ("act", "done") else f"a {due.kind}"
            raise WireError(f"{message.name} came where {placed} was due")
        if not math.isfinite(message.sent_s):
            raise WireError(f"{message.name} was sent at {message.sent_s} s, which is no time")
        getattr(self, f"_{due.kind}")(message, due)

    def _hello(self, message: Message, due: Due) -> None:
        _numbers(message, round=(-1, MOST), step=(-1, MOST))
        for key in message.values["saved"]:
            if not isinstance(key, list) or [type(each) for each in key] != [int, int]:
                raise WireError(f"{message.name} has {key!s:.40} saved: a round and a cut are due")

    def _probe(self, message: Message, due: Due) -> None:
        _tensors(message, {})

    def _clock(self, message: Message, due: Due) -> None:
        _numbers(message, offset_s=(-LARGE, LARGE))

    def _load(self, message: Message, due: Due) -> None:
        _tensors(message, {"load": ((LOAD_BYTES,), torch.uint8)})

    def _profile(self, message: Message, due: Due) -> None:
        _numbers(message, down_bps=(1e-9, LARGE))
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
        labels = (due.samples,), torch.int64
        _tensors(message, {"x": ((due.samples, *shape), dtype), "y": labels})
        low, high = (int(own) for own in message.tensors["y"].aminmax())
        if low < 0 or high >= self.classes:
            allowed = f"they are 0 to {self.classes - 1}"
            raise WireError(f"labels of {message.name} are {low} to {high}: {allowed}")
        _numbers(message, share=(due.share - 1e-9, due.share + 1e-9))

    def _done(self, message: Message, due: Due) -> None:
        state = {n: own for n, own in self.state.items() if int(n.split(".")[0]) < due.cut}
        steps = due.steps if due.cut == self.units else 0  # else the tail knows them
        more: dict[str, Wanted]
        more = {"losses": ((steps,), torch.float64), "intervals": (None, torch.float64)}
        _tensors(message, {STATE + name: own for name, own in state.items()} | more)
        for row in intervals(message.tensors["intervals"], 0):
            for key, most in (("batch", MOST), ("micro", MOST), ("bytes", LARGE)):
                _between(f"{key} of an interval", getattr(row, key), 0, most)
        samples = due.samples, due.samples
        _numbers(message, samples=samples, right=(0, due.samples), loss=(-1e30, 1e30))


def fingerprints(units: Sequence[nn.Module]) -> list[str]:
    """Return a word a unit for the names, shapes and types of its weights; not what it computes."""
    return [_digest(_layout(unit)) for unit in units]


def _layout(unit: nn.Module) -> str:
    state = unit.state_dict().items()
    return ", ".join(f"{k} {tuple(v.shape)} {v.dtype}" for k, v in state) or "without weights"


def _digest(layout: str) -> str:
    return hashlib.blake2b(layout.encode(), digest_size=8).hexdigest()


def sound(tail: Tail, loss: float) -> None:
    """See that loss, gradients and buffers are finite: features can be, and be too large for that.

    Raises:
        WireError: something is not, and would be in all weights.
    """
    found = [own.grad for own in tail.units.parameters() if own.grad is not None]
    found += [own for own in tail.units.buffers() if own.is_floating_point()]
    norms = (torch.linalg.vector_norm(own) for own in found)
    if not math.isfinite(loss) or not all(bool(norm.isfinite()) for norm in norms):
        raise WireError(f"what the features lead to {DIVERGED}")


def _tensors(message: Message, wanted: Mapping[str, Wanted]) -> None:
    """See that a message carries these tensors and no others, and that they are finite."""
    if extra := sorted(message.tensors.keys() - wanted.keys()):
        raise WireError(f"{message.name} carries {extra[0]}, which is not due")
    for name, (shape, dtype) in wanted.items():
        found = message.tensors.get(name)
        if found is None:
            raise WireError(f"{message.name} lacks {name}")
        due, came = tuple(found.shape if shape is None else shape), tuple(found.shape)
        if came != due or found.dtype != dtype:
            said = f"is {came} of {found.dtype} where {due} of {dtype} is due"
            raise WireError(f"{name} of {message.name} {said}")
        if not found.isfinite().all():
            raise WireError(f"{name} of {message.name} {DIVERGED}")


def _numbers(message: Message, **ranges: tuple[float, float]) -> None:
    for name, allowed in ranges.items():
        _between(f"{name} of {message.name}", message.values[name], *allowed)


def _between(name: str, value: Any, low: float, high: float) -> None:
    """Not even a number of 400 digits gets past, for nothing is made a float."""
    if type(value) not in (int, float) or not low <= value <= high:
        allowed = f"it is {low}" if low == high else f"{low} to {high} is allowed"
        raise WireError(f"{name} is {value!r:.40}: {allowed}")
