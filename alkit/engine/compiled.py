"""A part's whole step as one compiled call: forward, backward and update without the interpreter.

    eager      lock | f | lock | b | lock | loss | ... backward ... | lock | Adam
    compiled   lock | f, b, losses, backward and Adam, in C++                     | lock

Between an eager step's operators the interpreter's lock is taken, so threads with small operators
wait for each other; a compiled step holds none (Inductor's C++ wrapper). A part that can't be
compiled runs as it is, and `Step.why` says why.

torch keeps what it compiles by the code object of a function, eight versions at most, and tells
them apart by guards. So each step has a code object of its own, and its guards: without these two
threads in functions of one code object ran each other's code (torch's `isolate_recompiles` tells
such functions apart by a number that threads share).
"""

import copy
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from alkit.base import tree
from alkit.engine.device import device_of
from alkit.engine.random import random_from

Compile = Literal[False, "steps"]
Optimizers = Sequence[torch.optim.Optimizer | None]
UNUSUAL = ("amsgrad", "maximize", "differentiable", "dampening", "capturable")  # not written out


def check_compile(given: object) -> None:
    """Refuse what says nothing about compiling: a ValueError says what to give."""
    if given is not False and given != "steps":
        said = "give 'steps', or compile blocks yourself by block.compile()"
        raise ValueError(f"compile is {given!r}: {said}")


class NotCompiled(Exception):
    """Why something can't be compiled."""


class Step:
    """A part that updates by itself, with its whole step compiled where that can be.

    Args:
        losses: the part's mathematics: inputs -> (losses, what is handed on), the losses a tuple of
            scalars. Its parameters and buffers are the part's own.
        optimizers: of all its parameters: SGD, Adam or AdamW.
    Attributes:
        why: why it runs as it is; "" if it is compiled, or was not called yet.
        learning: the parameters that its losses reach, by name.
    """

    def __init__(self, losses: nn.Module, optimizers: Optimizers) -> None:
        self.losses, self.why = losses, ""
        self.optimizers = [each for each in optimizers if each is not None]
        self.learning: dict[str, nn.Parameter] = {}
        self.own: tuple[Any, ...] = ()  # parameters, other tensors, states and groups of parameters
        self.places: list[int] = []
        self.function: Callable[..., Any] | None = None
        self.seen = set[Any]()  # kinds of inputs in this epoch: the compiler looks at others

    def stands(self, optimizers: Optimizers) -> bool:
        """Say whether these are the optimisers that it was made for; a new epoch begins."""
        self.seen.clear()
        same = _groups(optimizers) == _groups(self.optimizers)
        return same and (not self.function or self.places == _places(self.losses))

    def __call__(self, *inputs: Any) -> tuple[Tensor, Any] | None:
        """Run a step; returns the losses (L,) and what is handed on, None if it runs as it is."""
        from torch._dynamo.exc import TorchDynamoException
        from torch._inductor.exc import InductorError

        try:
            self.function = self.function or self._compiled(inputs)
            parameters, rest, states, groups = self.own
            rates = [torch.as_tensor(group["lr"], dtype=torch.float64) for group in groups]
            kind = [(each.shape, each.stride(), each.dtype) for each in tree.tensors(inputs)]
            kinds = (*kind, torch.get_num_threads())
            with torch.no_grad(), nullcontext() if kinds in self.seen else compiling():
                found: tuple[Tensor, Any] = self.function(parameters, rest, states, rates, inputs)
            self.seen.add(kinds)
            return found
        except NotCompiled as reason:
            self.why = str(reason)
        except (TorchDynamoException, InductorError) as error:
            words = (str(error).strip() or type(error).__name__).splitlines()
            self.why = f"torch.compile can't take it: {words[0]}"
        return None

    def _compiled(self, inputs: Any) -> Callable[..., Any]:
        reached = _reached(self.losses, inputs)
        named = dict(self.losses.named_parameters()) | dict(self.losses.named_buffers())
        self.learning = {n: p for n, p in self.losses.named_parameters() if n in reached}
        rest = {name: each for name, each in named.items() if name not in reached}
        rules, groups, states = [], [], []
        for each in self.learning.values():
            rule, group, kept = _rule_of(each, self.optimizers)
            rules.append((rule, group))
            groups.append(group)
            states.append(kept)
        parameters = [each.detach() for each in self.learning.values()]
        self.own, self.places = (parameters, [*rest.values()], states, groups), _places(self.losses)
        return without_lock(_step_of(self.losses, [*self.learning, *rest], rules))


def _groups(optimizers: Optimizers) -> list[int]:
    return [id(group) for each in optimizers if each is not None for group in each.param_groups]


def _places(losses: nn.Module) -> list[int]:
    return [each.data_ptr() for each in (*losses.parameters(), *losses.buffers())]


def _reached(losses: nn.Module, inputs: Any) -> set[str]:
    """Run a copy of a part as it is, once; return the names of what its losses reach."""
    place = device_of(losses)
    if place is not None and place.type != "cpu":
        raise NotCompiled(f"it is on {place}, and steps are compiled on the CPU")
    try:
        copied = copy.deepcopy(losses)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise NotCompiled(f"it can't be copied: {error}") from error
    with random_from("probe") as noise, torch.enable_grad():
        made, _ = copied(*tree.map_tensors(torch.clone, inputs))
    if noise.generators:
        raise NotCompiled("it draws random numbers, which compiled code would draw by no seed")
    named = {name: p for name, p in copied.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(sum(made), [*named.values()], allow_unused=True)
    return {name for name, each in zip(named, found, strict=True) if each is not None}


def _step_of(losses: nn.Module, names: Sequence[str], rules: Sequence[Any]) -> Callable[..., Any]:
    def step(
        parameters: list[Tensor], rest: list[Tensor], states: Any, rates: list[Tensor], inputs: Any
    ) -> tuple[Tensor, Any]:
        def total(parameters: list[Tensor], rest: list[Tensor], inputs: Any) -> Any:
            held = dict(zip(names, [*parameters, *rest], strict=True))
            made, handed_on = functional_call(losses, held, inputs)
            return sum(made), (torch.stack([each.detach() for each in made]), handed_on)

        gradients, (_, kept) = grad_and_value(total, has_aux=True)(parameters, rest, inputs)
        for at, (rule, group) in enumerate(rules):
            rule(parameters[at], gradients[at], states[at], rates[at], group)
        return kept[0], tree.detach(kept[1])

    return step


def _adam(p: Tensor, g: Tensor, states: Sequence[Tensor], rate: Tensor, group: Any) -> None:
    count, first, second = states
    (beta1, beta2), decay, before = group["betas"], group["weight_decay"], p
    if decay and group["decoupled_weight_decay"]:
        before = p * (1 - rate * decay)
    elif decay:
        g = g + decay * p
    count.add_(1)
    first.lerp_(g, 1 - beta1)
    second.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    size = rate / (1 - beta1**count)
    p.copy_(before - size * first / ((second / (1 - beta2**count)).sqrt() + group["eps"]))


def _sgd(p: Tensor, g: Tensor, states: Sequence[Tensor], rate: Tensor, group: Any) -> None:
    g = g + group["weight_decay"] * p if group["weight_decay"] else g
    if group["momentum"]:
        states[0].mul_(group["momentum"]).add_(g)
        g = g + group["momentum"] * states[0] if group["nesterov"] else states[0]
    p.copy_(p - rate * g)


RULES: dict[type, Callable[..., None]]
RULES = {torch.optim.SGD: _sgd, torch.optim.Adam: _adam, torch.optim.AdamW: _adam}


def _rule_of(p: nn.Parameter, optimizers: Sequence[torch.optim.Optimizer]) -> Any:
    """Return how a parameter is updated, its group, and what its optimiser keeps of it."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if not any(each is p for each in group["params"]):
                continue
            rule = RULES.get(type(optimizer))
            hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
            watched = getattr(optimizer.step, "_wrapped_by_lr_sched", False)  # by a scheduler
            own = "step" in vars(optimizer) and not watched
            if not rule or hooks or own or any(map(group.get, UNUSUAL)):
                raise NotCompiled("its optimiser is none of SGD, Adam and AdamW as they are")
            names, held = ["step", "exp_avg", "exp_avg_sq"], optimizer.state[p]
            if rule is _sgd:
                names = ["momentum_buffer"] if group["momentum"] else []
            for name in names:  # made as it makes them
                if held.get(name) is None:
                    held[name] = torch.zeros(()) if name == "step" else torch.zeros_like(p)
            return rule, group, [held[name] for name in names]
    raise NotCompiled("an optimiser has not all its parameters")


def without_lock(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of tensors as a call that holds no interpreter's lock."""
    assert isinstance(function, types.FunctionType)
    code, closure = function.__code__.replace(), function.__closure__
    own = types.FunctionType(code, function.__globals__, closure=closure)
    compiled = torch.compile(own, fullgraph=True, dynamic=False, options={"cpp_wrapper": True})

    def call(*given: Any) -> Any:
        # With `fullgraph` a call counts the compiled frames that it met, in one number for the
        # process: beside others it may read 0 and raise, after its step. Where the count runs
        # already, nothing is checked; so it is running from here on.
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


# `torch.compiler.is_compiling()` is the whole process's, and torch's optimisers ask it: a step
# beside a compilation takes its powers of beta in float32, and so other bits.
compiling = partial(_apart, "compilations", "steps")
no_compilation = partial(_apart, "steps", "compilations")
