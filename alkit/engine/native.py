"""A part's whole step as one compiled call: forward, backward and update without the interpreter.

    eager      lock | f | lock | b | lock | loss | ... backward ... | lock | Adam
    compiled   lock | f, b, losses, backward and Adam, in C++                     | lock

Between an eager step's operators the interpreter's lock is taken, so threads with small operators
wait for each other; a compiled step holds none (Inductor's C++ wrapper). Parts of one structure
share it: parameters, buffers, and the optimisers' states and rates are its inputs.

A part that can't be compiled runs as it is, and `Native.why` says why.
"""

import copy
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from alkit.data import tree
from alkit.engine.compiled import NotCompiled, compiling, without_lock
from alkit.engine.description import Unknown, described, kinds_of, shareable
from alkit.engine.device import device_of
from alkit.engine.optimizer_steps import Slot, slots_of
from alkit.engine.random import random_from

MOVED = ("lr", "initial_lr", "max_lr", "min_lr", "scheduled")  # what no step is compiled for
KEPT_RATES = KEPT_STRUCTURES = 64
SHAPES = 16  # kinds of batches that a structure is compiled for


class Native:
    """A part that updates by itself, with its whole step compiled where that can be.

    Args:
        losses: the part's mathematics: inputs -> (losses, what is handed on), the losses a tuple of
            scalars. Its parameters and buffers are the part's own.
        optimizers: of all its parameters. Known ones step inside; of others the gradients are
            handed over, and `update` is called.
        inside: whether a step may follow each backward at once, nothing clipped or accumulated.
    Attributes:
        why: why it runs as it is; "" if it is compiled, or was not called yet.
        steps_inside: whether its optimisers step in the compiled call.
    """

    def __init__(
        self,
        losses: nn.Module,
        optimizers: Iterable[torch.optim.Optimizer | None],
        *,
        inside: bool = True,
    ) -> None:
        self.losses, self.why = losses, ""
        optimizers = [*optimizers]
        own = [slots_of(each) for each in optimizers if each is not None]
        self.steps_inside = inside and all(slots is not None for slots in own)
        found = {id(p): slot for slots in own if slots is not None for p, slot in slots}
        self.slots = found if self.steps_inside else {}
        self.learning: dict[str, nn.Parameter] = {}
        self.rest: dict[str, Tensor] = {}
        self.structure: _Structure | None = None
        self.rates: dict[float, Tensor] = {}
        self.held: _Held | None = None
        self.inside, self.optimizers = inside, optimizers
        self.made_for = self._made_for()

    def stands(self, optimizers: Sequence[torch.optim.Optimizer | None], *, inside: bool) -> bool:
        """Say whether what was compiled is still what these optimisers are to train."""
        same = all(a is b for a, b in zip(self.optimizers, optimizers, strict=True))
        self.held = None  # parameters, buffers and states may be others by now
        return same and inside == self.inside and self._made_for() == self.made_for

    def _made_for(self) -> Any:
        groups = [each.param_groups for each in self.optimizers if each is not None]
        options = [
            [(k, v) for k, v in group.items() if k not in ("params", *MOVED)]
            for each in groups
            for group in each
        ]
        return described(self.losses), repr(options)

    def __call__(
        self, *inputs: Any
    ) -> tuple[Tensor, Any, list[tuple[nn.Parameter, Tensor]]] | None:
        """Run a step, or up to the gradients.

        Returns:
            The losses (L,), what is handed on, and gradients by parameter if no step was made.
            None where the part has to run as it is.
        """
        if self.structure is None and not self.why:
            try:
                self.structure = _structure_of(self, inputs)
            except NotCompiled as reason:
                self.why = str(reason)
        structure = self.structure
        if structure is None:
            return None
        held = self.held = self.held or self._hold()
        rates = [self._rate(slot) for slot in held.slots]
        own = held.parameters, held.rest, held.states, rates, inputs
        with torch.no_grad():
            try:
                found = structure.run((held.kinds, kinds_of(inputs)), *own)
            except (NotCompiled, Unknown) as reason:
                self.structure, self.why = None, str(reason)
                return None
        if found is None:
            return None
        losses, handed_on, gradients = found
        return losses, handed_on, [*zip(held.parameters, gradients, strict=False)]

    def _hold(self) -> "_Held":
        """Look up what a step takes and changes; it stays the same over an epoch."""
        losses = self.losses
        named: dict[str, Tensor] = dict(losses.named_parameters()) | dict(losses.named_buffers())
        parameters = list(self.learning.values())
        rest = [named[name] for name in self.rest]
        slots = [self.slots[id(p)] for p in parameters] if self.steps_inside else []
        states = [slot.states(p) for p, slot in zip(parameters, slots, strict=False)]
        rates = [self._rate(slot) for slot in slots]
        return _Held(parameters, rest, slots, states, kinds_of([parameters, rest, states, rates]))

    def _rate(self, slot: Slot) -> Tensor:
        rate = slot.optimizer.param_groups[slot.group]["lr"]
        if isinstance(rate, Tensor):
            return rate
        if rate not in self.rates:
            if len(self.rates) > KEPT_RATES:
                self.rates.clear()
            self.rates[rate] = torch.tensor(rate, dtype=torch.float64)
        return self.rates[rate]


class _Held(NamedTuple):
    """What a part's step takes beside its inputs.

    Attributes:
        kinds: of all its tensors.
    """

    parameters: list[nn.Parameter]
    rest: list[Tensor]
    slots: list[Slot]
    states: list[list[Tensor]]
    kinds: Any


class _Structure:
    """The compiled step of all parts that are alike."""

    def __init__(self, native: Native, template: nn.Module) -> None:
        self.lock = threading.Lock()
        names, rest = list(native.learning), list(native.rest)
        slots = native.slots
        rules = [
            (s.known.step, s.options) for p in native.learning.values() if (s := slots.get(id(p)))
        ]

        def step(
            parameters: list[Tensor],
            others: list[Tensor],
            states: list[list[Tensor]],
            rates: list[Tensor],
            inputs: tuple[Any, ...],
        ) -> tuple[Tensor, Any, Sequence[Tensor]]:
            def total(parameters: list[Tensor], others: list[Tensor], inputs: Any) -> Any:
                held = dict(zip([*names, *rest], [*parameters, *others], strict=True))
                losses, handed_on = functional_call(template, held, inputs)
                kept = torch.stack([loss.detach() for loss in losses])
                return sum(losses), (kept, tree.detach(handed_on))

            each = grad_and_value(total, has_aux=True)
            gradients, (_, (losses, handed_on)) = each(parameters, others, inputs)
            if not rules:
                return losses, handed_on, gradients
            for at, (rule, options) in enumerate(rules):
                new = rule(parameters[at], gradients[at], states[at], rates[at], options)
                parameters[at].copy_(new)
            return losses, handed_on, ()

        self.step, self.looks = step, not shareable(template)
        self.compiled: dict[Any, Callable[..., Any]] = {}  # by what it was compiled for

    def run(self, kinds: Any, *own: Any) -> tuple[Tensor, Any, Sequence[Tensor]] | None:
        """Run a step of one of these parts.

        Args:
            kinds: of all tensors that are given, in their places.
        Returns:
            None if it was compiled for too many kinds already: compiling takes seconds.
        Raises:
            NotCompiled: that can't be done.
        """
        kinds = kinds, *_situation()
        compiled = self.compiled.get(kinds)
        if compiled is not None:
            return compiled(*own)
        with self.lock, compiling():  # alike parts of other threads wait for what they need, too
            if kinds not in self.compiled:
                if len(self.compiled) == SHAPES:
                    return None
                made = _compiled(self.step, look=self.looks)
                found = made(*own)
                self.compiled[kinds] = made
                return found
        return self.compiled[kinds](*own)


_STRUCTURES: dict[Any, _Structure] = {}
_MAKING = threading.Lock()


def _situation() -> tuple[Any, ...]:
    """Return what else compiled code depends on: state of the calling thread."""
    cast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
    exact = torch.are_deterministic_algorithms_enabled()
    return torch.get_num_threads(), cast, exact, torch.get_default_dtype()


def _compiled(step: Callable[..., Any], *, look: bool) -> Callable[..., Any]:
    """Compile a step for the first arguments that it will get, and for no others.

    Whoever calls it looks at whether arguments are such ones: the compiler's own look takes half a
    millisecond, with the lock.

    Args:
        look: all the same, for what the step is made of can't be compared.
    """
    own: dict[str, Any] = {}
    if not look:
        own["guard_filter_fn"] = torch.compiler.skip_all_guards_unsafe
    return without_lock(step, **own)


def _structure_of(native: Native, inputs: Any) -> _Structure:
    template = _probed(native, inputs)
    if not shareable(template):  # torch.compile itself looks at whether the part has changed
        return _Structure(native, native.losses)
    slots = [native.slots.get(id(p)) for p in native.learning.values()]
    options = [(s.known.step, sorted(s.options.items())) for s in slots if s is not None]
    key = repr((described(template), list(native.learning), list(native.rest), options))
    with _MAKING:
        if key not in _STRUCTURES:
            if len(_STRUCTURES) == KEPT_STRUCTURES:
                del _STRUCTURES[next(iter(_STRUCTURES))]
            _STRUCTURES[key] = _Structure(native, template)
        return _STRUCTURES[key]


def _probed(native: Native, inputs: Any) -> nn.Module:
    """Run a copy of a part as it is, once, and return the copy.

    Raises:
        NotCompiled: it does what a compiled step would not.
    """
    place = device_of(native.losses)
    if place is not None and place.type != "cpu":
        raise NotCompiled(f"it is on {place}, and steps are compiled on the CPU")
    try:
        template = copy.deepcopy(native.losses)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise NotCompiled(f"it can't be copied: {error}") from error
    before = described(template)
    with random_from("probe") as noise, torch.enable_grad():
        losses, _ = template(*tree.map_tensors(torch.clone, inputs))
    named = {name: p for name, p in template.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(sum(losses), list(named.values()), allow_unused=True)
    learning = {name for name, gradient in zip(named, found, strict=True) if gradient is not None}
    if noise.generators:
        raise NotCompiled("it draws random numbers, which compiled code would draw by no seed")
    if described(template) != before:
        raise NotCompiled("its forward changes attributes of a module")
    parameters = dict(native.losses.named_parameters())
    native.learning = {name: p for name, p in parameters.items() if name in learning}
    rest = {name: p for name, p in parameters.items() if name not in learning}
    native.rest = rest | dict(native.losses.named_buffers())
    return template
