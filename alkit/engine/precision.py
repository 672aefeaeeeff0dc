"""Arithmetic narrower than float32, by one word: weights stay as they are, operators are cast."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


def check_precision(precision: str, allowed: Iterable[str] = PRECISIONS) -> None:
    """Refuse a precision that is unknown, or not of these.

    Raises:
        ValueError: names those that may be given.
    """
    if precision not in allowed:
        raise ValueError(f"precision is {precision!r}: give {', '.join(allowed)}")


@contextmanager
def autocast(precision: str) -> Iterator[None]:
    """Run the operators that bear it in a narrower type, on the CPU and on the accelerator.

    Workers and ranks begin with the state of the thread that starts them, so this holds there, too
    (`alkit.engine.caller`). "float32" changes nothing, also no autocast of the caller's own.
    """
    dtype = PRECISIONS[precision]
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    kinds = {"cpu"} | ({accelerator.type} if accelerator else set())
    with ExitStack() as stack:
        for kind in sorted(kinds) if dtype is not None else ():
            # a cache of casts is one for all threads: what a thread finds would depend on timing
            stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
        yield
