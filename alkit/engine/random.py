"""Randomness as a function of (seed, stage, batch, micro-batch), never of timing.

Dropout drawn from torch's global generator depends on which thread comes first. Inside
`random_from(generator)` every random operator of the calling thread draws from that generator
instead: a dispatch mode sits below autograd and below `nn.Module`, so attention's and LSTM's own
dropout are caught too, and its stack belongs to one thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from alkit.data.seeds import generator_for

__all__ = ["random_from"]


@contextmanager
def random_from(*key: int | str) -> Iterator[None]:
    """Make the random operators that the calling thread runs in this block a function of `key`.

    Raises:
        RuntimeError: an operator draws random numbers and takes no generator, so that its result
            would depend on timing.
    """
    with _Redirect(key):
        yield


class _Redirect(TorchDispatchMode):
    """Hand a generator of ours to every operator that draws random numbers."""

    def __init__(self, key: tuple[int | str, ...]) -> None:
        super().__init__()
        self.key = key
        self.generator: Generator | None = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled blocks run compiled; what they draw still comes through here."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.bernoulli_.float and _is_plain(args[0]):
            return _fill_with_coins(*args, generator=self._generator(args, kwargs))
        if _draws(func, args, kwargs) and kwargs.get("generator") is None:
            func, kwargs = (
                _with_generator(func),
                kwargs | {"generator": self._generator(args, kwargs)},
            )
        return func(*args, **kwargs)

    def _generator(self, args: tuple, kwargs: dict) -> torch.Generator:
        # made on first use: most blocks draw nothing, and seeding takes some microseconds
        if self.generator is None:
            self.generator = generator_for(*self.key, device=_device_of(args, kwargs))
        return self.generator


def _draws(func: Any, args: tuple, kwargs: dict) -> bool:
    """Say whether an operator draws random numbers: fused attention does not without dropout."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[place] if place < len(args) else kwargs.get("dropout_p", 0.0)
            return given > 0
    return True


def _is_plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.numel() > 0


def _fill_with_coins(tensor: Tensor, p: float = 0.5, *, generator: Generator) -> Tensor:
    """Set each element to 1 with probability p, to the nearest 1/65,536, else to 0.

    Dropout draws its mask with bernoulli_, one number after the other; four coins of 16 bits from
    each 64-bit number take a third of the time.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p is {p}: a probability is from 0 to 1")
    count = tensor.numel()
    numbers = torch.empty((count + 3) // 4, dtype=torch.int64)
    numbers.random_(-(2**63), None, generator=generator)  # all 64 bits
    coins = numbers.view(torch.int16)[:count]
    threshold = round(p * 2**16) - 2**15
    ones = coins < threshold if threshold < 2**15 else torch.ones_like(coins)
    return tensor.copy_(ones.view(tensor.shape))


def _with_generator(func: Any) -> Any:
    """Return the overload of `func` that takes a generator: itself, or rand.generator for rand."""
    if _takes_generator(func):
        return func
    packet, name = func.overloadpacket, func._overloadname
    between = name.replace("_out", "_generator_out")  # what compiled dropout asks for its seeds
    for twin in ("generator", f"generator_{name}", f"{name}_generator", between):
        if (twin == "generator") == (name == "default") and twin in packet.overloads():
            return getattr(packet, twin)
    raise RuntimeError(
        f"{func} draws random numbers and takes no generator, so its result would depend on timing;"
        " use an operator that takes one (torch.bernoulli, torch.rand, nn.Dropout on the CPU, ...);"
        " in a compiled block, leave out of torch.compile what draws"
    )


def _takes_generator(func: Any) -> bool:
    return any(argument.name == "generator" for argument in func._schema.arguments)


def _device_of(args: tuple, kwargs: dict) -> torch.device | str:
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            return value.device
    return kwargs.get("device") or "cpu"
