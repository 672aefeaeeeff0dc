"""What a device may send, checked before it touches anything.

Whoever sends something else is left out of the round, with the sentence that is raised here.
"""

import copy
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from alkit.data.arguments import given
from alkit.models.modes import evaluating
from alkit.split.average import DIVERGED
from alkit.split.halves import Tail, state_of
from alkit.split.log import intervals
from alkit.split.profile import LOAD_BYTES, Machine
from alkit.split.rounds import Assignment
from alkit.split.wire import Message, WireError

MOST = 2**31  # of rounds, steps, micro-batches
LARGE = 1e15  # of seconds, bytes and bit/s
Wanted = tuple[Sequence[int] | None, torch.dtype]  # shape, None for any, and type


class Check:
    """What the messages of one run are measured by.

    Args:
        units: the whole network, which stays as it is.
        example: one sample's input (1, ...), as the network takes it.
        cuts: of devices, or all that a planner may choose.
    Raises:
        ValueError: units that can't be run one after the other, averaged or cut there.
    """

    def __init__(
        self, units: Sequence[nn.Module], example: Tensor, cuts: Iterable[int] = ()
    ) -> None:
        cuts = sorted(set(cuts))
        check_units(units, cuts)
        self.units, self.example, x = len(units), example, example
        self.layouts = [_layout(unit) for unit in units]
        self.features = [(x.shape[1:], x.dtype)]  # at each cut, of a sample
        self.network = [unit.cpu() for unit in copy.deepcopy(list(units))]
        for at, unit in enumerate(self.network):
            taken = f"{tuple(x.shape)} of {x.dtype}"
            with evaluating(unit), torch.no_grad():
                try:
                    x = unit(x)
                except RuntimeError as error:
                    raise ValueError(f"unit {at} does not take {taken}: {error}") from error
            if not isinstance(x, Tensor):
                raise ValueError(
                    f"unit {at} gives a {type(x).__name__}: split learning sends one tensor"
                    " from head to tail, so join the units that hand on more"
                )
            self.features.append((x.shape[1:], x.dtype))
        for cut in cuts:
            if 0 < cut < self.units and not (kind := self.features[cut][1]).is_floating_point:
                raise ValueError(
                    f"unit {cut - 1} gives {kind}, through which no gradient comes back: cut after"
                    " a unit that gives floats, or leave all units on one side"
                )
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

    def runs(self, state: Mapping[str, Tensor]) -> bool:
        """Say whether a network with this state gives finite scores."""
        network = nn.Sequential(*self.network)
        network.load_state_dict(dict(state))
        with evaluating(network), torch.no_grad():
            return bool(network(self.example).isfinite().all())

    def hello(self, message: Message) -> set[tuple[int, int]]:
        """Return the rounds and cuts at whose beginning a device knows its optimiser."""
        for key in message.values["saved"]:
            if not isinstance(key, list) or [type(each) for each in key] != [int, int]:
                raise WireError(f"{message.name} has {key!s:.40} saved: a round and a cut are due")
        return {(at, cut) for at, cut in message.values["saved"]}

    def probe(self, message: Message) -> None:
        """An answer that carries nothing, and a time."""
        _tensors(message, {})
        _between(f"the time of {message.name}", message.sent_s, -LARGE, LARGE)

    def load(self, message: Message) -> None:
        """Bytes that time a link."""
        _tensors(message, {"load": ((LOAD_BYTES,), torch.uint8)})

    def profile(self, message: Message) -> Machine:
        """Return what a device says that its units take."""
        _between(f"arrived_s of {message.name}", message.values["arrived_s"], -LARGE, LARGE)
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
        return machine

    def act(self, message: Message, place: tuple[int, int, int], cut: int, samples: int) -> None:
        """Activations and labels of a micro-batch."""
        _due(message, Message("act", *place))
        shape, dtype = self.features[cut]
        _tensors(message, {"x": ((samples, *shape), dtype), "y": ((samples,), torch.int64)})
        low, high = (int(own) for own in message.tensors["y"].aminmax())
        if low < 0 or high >= self.classes:
            allowed = f"they are 0 to {self.classes - 1}"
            raise WireError(f"labels of {message.name} are {low} to {high}: {allowed}")

    def done(
        self,
        message: Message,
        number: int,
        own: Assignment,
        samples: int,
        before: Mapping[str, Any],
    ) -> None:
        """A round's weights, losses and lanes.

        Args:
            samples: in all steps of the round.
            before: the state that the round began with.
        """
        _due(message, Message("done", number, own.steps.stop))
        wanted: dict[str, Wanted]
        wanted = {name: kind for name, kind in self.state.items() if unit_of(name) < own.cut}
        alone = len(own.steps) if own.cut == self.units else 0  # else the tail knows the losses
        wanted |= {"losses": ((alone,), torch.float64), "intervals": (None, torch.float64)}
        _tensors(message, wanted, before)
        rows = message.tensors["intervals"]
        if len(rows) > (most := len(own.steps) * (3 * own.micro + 2) + 8):
            raise WireError(f"{message.name} has {len(rows)} intervals, and {most} would be many")
        for row in intervals(rows, 0):
            for key, limit in (("batch", MOST), ("micro", MOST), ("bytes", LARGE)):
                _between(f"{key} of an interval", getattr(row, key), 0, limit)
        _between(f"samples of {message.name}", message.values["samples"], samples, samples)
        _between(f"right of {message.name}", message.values["right"], 0, samples)
        for name, tensor in message.tensors.items():
            if name.endswith("running_var") and (tensor < 0).any():
                raise WireError(f"{name} of {message.name} has a variance below zero")
            if name.endswith("num_batches_tracked"):
                first = int(before[name])
                limit = first + 16 * len(own.steps) * own.micro
                _between(f"{name} of {message.name}", int(tensor), first, limit)


def check_units(units: Sequence[nn.Module], cuts: Sequence[int]) -> None:
    """Refuse what can't be averaged, and what both sides would train on their own.

    Raises:
        ValueError: names the first unit that keeps something else than real tensors, or what is
            shared.
    """
    for at, unit in enumerate(units):
        for name, own in unit.state_dict().items():
            if not isinstance(own, Tensor) or own.is_complex():
                raise ValueError(
                    f"unit {at} keeps {name}, {given(own)}, and what devices have is averaged: keep"
                    " real tensors alone, as parameters or buffers"
                )
    for cut in cuts:
        sides = [
            {id(own): name for unit in side for name, own in unit.named_parameters()}
            for side in (units[:cut], units[cut:])
        ]
        if both := sides[0].keys() & sides[1].keys():
            raise ValueError(
                f"head and tail would share a parameter ({sides[0][both.pop()]}), each with a copy:"
                " untie it, or cut so that both uses are on one side"
            )


def unit_of(name: str) -> int:
    """Return the unit that a tensor of a network's state belongs to."""
    return int(name.partition(".")[0])


def fingerprints(units: Sequence[nn.Module]) -> list[str]:
    """Return a word a unit for the names, shapes and types of its weights; not what it computes."""
    return [_digest(_layout(unit)) for unit in units]


def sound(tail: Tail, loss: float) -> None:
    """See that loss, gradients and buffers are finite: features can be, and be too large for that.

    Raises:
        WireError: something is not, and would be in all weights.
    """
    found = [own.grad for own in tail.units.parameters() if own.grad is not None]
    norms = (torch.linalg.vector_norm(own) for own in found)
    kept = tail.units.named_buffers()
    same = math.isfinite(loss) and all(_finite(own, tail.buffers.get(name)) for name, own in kept)
    if not same or not all(bool(norm.isfinite()) for norm in norms):
        raise WireError(f"what the features lead to {DIVERGED}")


def _layout(unit: nn.Module) -> str:
    state = unit.state_dict().items()
    return ", ".join(f"{k} {tuple(v.shape)} {v.dtype}" for k, v in state) or "without weights"


def _digest(layout: str) -> str:
    return hashlib.blake2b(layout.encode(), digest_size=8).hexdigest()


def _due(message: Message, due: Message) -> None:
    if (message.kind, *message.place) != (due.kind, *due.place):
        raise WireError(f"{message.name} came where {due.name} was due")


def _finite(own: Tensor, before: Tensor | None) -> bool:
    """Whether all of a tensor is finite, or infinite as it was before, as masks are."""
    fine = own.isfinite()
    return bool((fine if before is None else fine | (own == before)).all())


def _tensors(
    message: Message, wanted: Mapping[str, Wanted], before: Mapping[str, Tensor] | None = None
) -> None:
    """See that a message carries these tensors and no others, and that they are sound."""
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
        if not _finite(found, (before or {}).get(name)):
            raise WireError(f"{name} of {message.name} {DIVERGED}")


def _between(name: str, value: Any, low: float, high: float) -> None:
    """Not even a number of 400 digits gets past, for nothing is made a float."""
    if type(value) not in (int, float) or not low <= value <= high:
        allowed = f"it is {low}" if low == high else f"{low} to {high} is allowed"
        raise WireError(f"{name} is {value!r:.40}: {allowed}")
