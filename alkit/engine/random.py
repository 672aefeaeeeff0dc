"""Randomness as a function of (seed, stage, batch, micro-batch), never of timing.

Dropout drawn from the global generator of torch depends on the order of threads. Inside
`random_from(*key)` every random operator of the calling thread draws from a generator of the key: a
dispatch mode sits below autograd and `nn.Module`, so attention's and LSTM's own dropout are caught.

    takes a generator           ours, of the operator's device        rand, bernoulli_, normal_, ...
    native_dropout              written out, with a mask of ours      nn.Dropout on an accelerator
    others, on an accelerator   the device's own generator is lent    fused attention with dropout
    others, on the CPU          refused

Draws are the same on every CPU, and on every device of one kind. The mode costs microseconds per
operator: a part that can't draw runs without it (`noise_of`).

A block may recompute inside itself (`torch.utils.checkpoint`), when its forward is long over. It
enters the same contexts again, for the same noise and the same weights.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
import torch.utils.checkpoint as torchs
from torch import Generator, Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from alkit.base import tree
from alkit.base.seeds import generator_for

QUIET = {*vars(nn.Module()), "optimizer_factory"}  # attributes that no forward calls
ORIGINS = "torch.nn.modules.", "alkit."
FUNCTIONS = "torch.nn.functional", "torch._C", "torch", "alkit."
DRAWING = nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d
WORDS = "drop", "rand", "rrelu", "gumbel", "fractional", "bernoulli", "multinomial", "normal"
Capture = Callable[[], Callable[[], AbstractContextManager[Any]]]


def noise_of(part: Callable[..., Any], *key: int | str) -> AbstractContextManager[Any]:
    """Return `random_from(*key)`, or nothing to enter where a module, or a loss, can't draw."""
    return random_from(*key) if may_draw(part) else nullcontext()


@contextmanager
def random_from(*key: int | str, states: Iterable[Any] = ()) -> Iterator["_Redirect"]:
    """Make random operators of this thread a function of `key`; generators go on from `states`."""
    mode = _Redirect(key)
    for device, state in states:
        mode._generator(device).set_state(state)
    with mode, entered(mode.again):
        yield mode


class _Redirect(TorchDispatchMode):
    """Hand a generator of ours to every operator that draws random numbers."""

    def __init__(self, key: tuple[int | str, ...]) -> None:
        super().__init__()
        self.key = key
        self.generators: dict[torch.device, Generator] = {}

    def again(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return a function that draws on from here, when the backward recomputes."""
        states = [(device, own.get_state()) for device, own in self.generators.items()]
        return partial(random_from, *self.key, states=states)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled blocks run compiled; their draws still come through here."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _draws(func, args, kwargs) or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        device = next((each.device for each in tree.tensors([*args, *kwargs.values()])), None)
        generator = self._generator(device or torch.device(kwargs.get("device") or "cpu"))
        if func is torch.ops.aten.bernoulli_.float and args[0].numel():
            return _fill_with_coins(*args, generator=generator)
        if func is torch.ops.aten.native_dropout.default:
            return _dropout(*args, generator=generator)
        if (twin := _with_generator(func)) is not None:
            return twin(*args, **(kwargs | {"generator": generator}))
        if generator.device.type == "cpu" or func is torch.ops.aten._cudnn_rnn.default:
            raise RuntimeError(
                f"{func} draws random numbers and takes no generator, so its result would depend on"
                " timing: use torch.bernoulli, torch.rand or nn.Dropout, outside of torch.compile;"
                " for cuDNN's LSTM with dropout, layers of one level with nn.Dropout between them"
            )
        with _lent(generator):
            return func(*args, **kwargs)

    def _generator(self, device: torch.device) -> Generator:
        # made on first use: most blocks draw nothing, and seeding takes some microseconds
        if device not in self.generators:
            self.generators[device] = generator_for(*self.key, device=device)
        return self.generators[device]


def _draws(func: Any, args: tuple, kwargs: dict) -> bool:
    """Say whether an operator draws random numbers: without dropout, fused ones do not."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    if func is torch.ops.aten.native_dropout.default:
        return args[1] > 0 and args[2] is not False
    for place, argument in enumerate(func._schema.arguments):
        if argument.name in ("dropout_p", "dropout"):  # of attention, of cuDNN's LSTM
            given = args[place] if place < len(args) else kwargs.get(argument.name, 0.0)
            return given > 0
    return True


def _fill_with_coins(tensor: Tensor, p: float = 0.5, *, generator: Generator) -> Tensor:
    """Set each element to 1 with probability p, to the nearest 1/65,536, else to 0.

    Four coins of 16 bits from each 64-bit number take a third of the time of `bernoulli_`.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p is {p}: a probability is from 0 to 1")
    count = tensor.numel()
    numbers = torch.empty((count + 3) // 4, dtype=torch.int64, device=tensor.device)
    numbers.random_(-(2**63), None, generator=generator)  # all 64 bits
    coins = numbers.view(torch.int16)[:count]
    threshold = round(p * 2**16) - 2**15
    ones = coins < threshold if threshold < 2**15 else torch.ones_like(coins)
    return tensor.copy_(ones.view(tensor.shape))


def _dropout(x: Tensor, p: float, _: bool | None, *, generator: Generator) -> tuple[Tensor, Tensor]:
    """Do what native_dropout does, with a mask of ours: returns x / (1 - p) or 0, and the mask."""
    coins = _fill_with_coins(torch.empty_like(x), 1 - p, generator=generator)
    mask = coins > 0
    return x * (coins.div_(1 - p) if p < 1 else coins), mask


_LENDING = threading.Lock()


@contextmanager
def _lent(generator: Generator) -> Iterator[None]:
    """Let the generator of the device be ours while one operator is launched."""
    device = generator.device
    module = torch.get_device_module(device)
    with _LENDING:
        before = module.get_rng_state(device)
        module.set_rng_state(generator.get_state(), device)
        try:
            yield
        finally:
            generator.set_state(module.get_rng_state(device))
            module.set_rng_state(before, device)


def _with_generator(func: Any) -> Any:
    """Return the overload of `func` that takes a generator, such as rand.generator; or None."""
    if any(argument.name == "generator" for argument in func._schema.arguments):
        return func
    packet, name = func.overloadpacket, func._overloadname
    between = name.replace("_out", "_generator_out")  # compiled dropout asks it for its seeds
    for twin in ("generator", f"generator_{name}", f"{name}_generator", between):
        if (twin == "generator") == (name == "default") and twin in packet.overloads():
            return getattr(packet, twin)
    return None


# ---- who could draw


def may_draw(part: Callable[..., Any]) -> bool:
    """Say whether a module, or a loss, could draw random numbers, by its parts.

    False only where all of them are from torch or alkit, none drops anything, and they call no code
    of a user.
    """
    if not isinstance(part, nn.Module):
        return _drops("loss", part)
    everywhere = hooks._global_forward_hooks or hooks._global_forward_pre_hooks
    return bool(everywhere) or any(map(_may_draw, part.modules()))


def _may_draw(part: nn.Module) -> bool:
    own = vars(part)
    foreign = not type(part).__module__.startswith(ORIGINS) or isinstance(part, DRAWING)
    if foreign or "forward" in own or own["_forward_hooks"] or own["_forward_pre_hooks"]:
        return True
    return any(_drops(name, own[name]) for name in own.keys() - QUIET)


def _drops(name: str, value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return any(_drops(name, each) for each in tree_leaves(value))
    if isinstance(value, int | float):
        return value > 0 and (name == "p" or "drop" in name)
    if not callable(value):
        return False
    origin = getattr(value, "__module__", None) or "torch._C"
    called = getattr(value, "__name__", type(value).__name__)
    return not origin.startswith(FUNCTIONS) or any(word in called for word in WORDS)


# ---- recomputation inside a block


_HERE = ContextVar[tuple[Capture, ...]]("captures of the calling thread", default=())


@contextmanager
def entered(capture: Capture) -> Iterator[None]:
    """Let recomputations of functions that are called inside enter the context of this block again.

    `capture` is called where a recomputed function begins, and returns a maker of the context.
    """
    before = _HERE.set((*_HERE.get(), capture))
    try:
        yield
    finally:
        _HERE.reset(before)


def _checkpointed(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Do as torch does; every call but the first, which is here, enters everything again."""
    if not (captures := _HERE.get()):
        return _CHECKPOINT(function, *given, **options)
    makes, first = [capture() for capture in captures], [True]

    def run(*args: Any, **more: Any) -> Any:
        with ExitStack() as stack:
            for make in makes if not first else ():
                stack.enter_context(make())
            first.clear()
            return function(*args, **more)

    # torch reads the state of its generator under a lock, which it may hold while it waits for the
    # interpreter's: two workers that do so can wait for each other for ever
    return _CHECKPOINT(run, *given, **options | {"preserve_rng_state": False})


# `checkpoint` looks it up by name; outside of blocks it does as before
if hasattr(torchs, "_checkpoint_impl"):  # torch 2.14 has it, 2.11 has not
    _CHECKPOINT = torchs._checkpoint_impl
    torchs._checkpoint_impl = _checkpointed
