"""Forward, losses and backward of a part as one compiled call, without the interpreter's lock.

    eager      lock | f | lock | b | lock | loss | ... backward ... | lock | Adam
    compiled   lock | f, b, losses and backward, in C++                    | lock | Adam

Threads with small operators wait for the lock between them; Inductor's C++ wrapper holds none.
"""

import copy
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from operator import is_
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from alkit.base import tree
from alkit.engine.device import device_of
from alkit.engine.random import random_from

Compile = Literal[False, "steps"]


class NotCompiled(Exception):
    """Why something can't be compiled."""


class _Losses(nn.Module):
    def __init__(self, function: Callable[..., Any], parts: Sequence[Any]) -> None:
        super().__init__()
        self.function, self.parts = function, list(parts)
        self.modules_ = nn.ModuleList(each for each in parts if isinstance(each, nn.Module))

    def forward(self, *inputs: Any) -> Any:
        return self.function(*self.parts, *inputs)


class Step:
    """Losses and their gradients, as one compiled call; where that can't be, `why` says why.

    Args:
        function: called with parts and inputs, returns (a tuple of losses, the output to hand on).
        parts: modules, and others.
    """

    def __init__(self, function: Callable[..., Any], parts: Sequence[Any]) -> None:
        self.losses, self.why = _Losses(function, parts), ""
        self.function: Callable[..., Any] | None = None  # compiled
        self.learning: Sequence[nn.Parameter] = ()
        self.own: tuple[list[Tensor], ...] = ()  # parameters, other tensors, gradients
        self.places = self._places()
        self.seen = set[Any]()  # kinds of inputs in this epoch: the compiler looks at others

    def stands(self, parts: Sequence[Any]) -> bool:
        """Say whether these are its parts, and where they were; a new epoch begins."""
        self.seen.clear()
        return all(map(is_, parts, self.losses.parts)) and self.places == self._places()

    def __call__(self, *inputs: Any) -> tuple[Tensor, Any] | None:
        """Leave gradients; return the losses (L,) and the output to hand on, None if it can't."""
        from torch._dynamo.exc import TorchDynamoException
        from torch._inductor.exc import InductorError

        try:
            self.function = self.function or self._compiled(inputs)
            kinds: Any = [(own.shape, own.stride(), own.dtype) for own in tree.tensors(inputs)]
            kinds = (*kinds, torch.get_num_threads())
            with torch.no_grad(), nullcontext() if kinds in self.seen else compiling():
                found: tuple[Tensor, Any] = self.function(*self.own, inputs)
        except (NotCompiled, TorchDynamoException, InductorError) as error:
            said = "" if isinstance(error, NotCompiled) else "torch.compile can't take it: "
            self.why = said + (str(error).strip() or type(error).__name__).splitlines()[0]
            return None
        if not self.seen:  # gradients from an epoch before, or from others, train nothing
            self.losses.zero_grad(set_to_none=True)
        self.seen.add(kinds)
        for parameter, gradient in zip(self.learning, self.own[2], strict=True):
            parameter.grad = gradient
        return found

    def _compiled(self, inputs: Any) -> Callable[..., Any]:
        reached = _reached(self.losses, inputs)
        learning = {name: own for name, own in self.losses.named_parameters() if name in reached}
        named = dict(self.losses.named_parameters()) | dict(self.losses.named_buffers())
        rest = {name: own for name, own in named.items() if name not in reached}
        self.learning = [*learning.values()]
        parameters = [own.detach() for own in self.learning]
        self.own = parameters, [*rest.values()], [*map(torch.empty_like, parameters)]
        losses, names = self.losses, [*learning, *rest]

        def total(parameters: list[Tensor], rest: list[Tensor], inputs: Any) -> Any:
            held = dict(zip(names, [*parameters, *rest], strict=True))
            made, handed_on = functional_call(losses, held, inputs)
            return sum(made), (torch.stack([each.detach() for each in made]), handed_on)

        def step(parameters: Any, rest: Any, gradients: Any, inputs: Any) -> tuple[Tensor, Any]:
            found, (_, kept) = grad_and_value(total, has_aux=True)(parameters, rest, inputs)
            for gradient, each in zip(gradients, found, strict=True):
                gradient.copy_(each)
            return kept[0], tree.detach(kept[1])

        return without_lock(step)

    def _places(self) -> list[int]:
        return [own.data_ptr() for own in (*self.losses.parameters(), *self.losses.buffers())]


def _reached(losses: nn.Module, inputs: Any) -> set[str]:
    """Run a copy of a part as it is, once; return the names of weights that its losses reach."""
    place = device_of(losses)
    if place is not None and place.type != "cpu":
        raise NotCompiled(f"it is on {place}, and steps are compiled on the CPU")
    copied = copy.deepcopy(losses)
    with random_from("probe") as noise, torch.enable_grad():
        made, _ = copied(*tree.map_tensors(torch.clone, inputs))
    if noise.generators:
        raise NotCompiled("it draws random numbers, which compiled code would draw by no seed")
    named = {name: p for name, p in copied.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(sum(made), [*named.values()], allow_unused=True)
    return {name for name, each in zip(named, found, strict=True) if each is not None}


def without_lock(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of tensors as a call that holds no interpreter's lock.

    torch keeps compiled code by the code object of a function. Two threads in functions of one ran
    each other's code, so each function gets its own.
    """
    assert isinstance(function, types.FunctionType)
    code, closure = function.__code__.replace(), function.__closure__
    own = types.FunctionType(code, function.__globals__, closure=closure)
    compiled = torch.compile(own, fullgraph=True, dynamic=False, options={"cpp_wrapper": True})

    def call(*given: Any) -> Any:
        # With `fullgraph` a call counts its compiled frames, in one number for the process: next to
        # others it may read 0 and raise, after its step. A count that runs already isn't checked.
        getattr(torch._C._dynamo.eval_frame, "set_fullgraph_compiled_frame_count", int)(0)
        return compiled(*given)

    return call


_turn = threading.Condition()
_inside = {"steps": 0, "compilations": 0}


@contextmanager
def _apart(own: str, others: str) -> Iterator[None]:
    with _turn:
        _turn.wait_for(lambda: not _inside[others])
        _inside[own] += 1
    try:
        yield
    finally:
        with _turn:
            _inside[own] -= 1
            _turn.notify_all()


# `torch.compiler.is_compiling()` is for the whole process, and torch's optimisers ask it: a step
# during a compilation takes its powers of beta in float32, and so other bits.
compiling = partial(_apart, "compilations", "steps")
no_compilation = partial(_apart, "steps", "compilations")
