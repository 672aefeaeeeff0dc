"""Recomputation inside a block (`torch.utils.checkpoint`): what it ran in is entered again.

A backward runs the checkpointed function a second time, when the block's forward is long over: its
noise would be the process's, and where old weights are kept, the weights would be the newest.

    forward    entered(noise) · entered(weights) · function      states are noted at its begin
    backward                  noise · weights · function         the same masks, the same weights
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch.utils.checkpoint as torchs

Capture = Callable[[], Callable[[], AbstractContextManager[Any]]]


class _Here(threading.local):
    def __init__(self) -> None:
        self.captures: list[Capture] = []


_HERE = _Here()


@contextmanager
def entered(capture: Capture) -> Iterator[None]:
    """Have what this block runs in entered again by recomputations of what is called inside.

    Args:
        capture: called where a recomputed function begins; returns what makes the context anew.
    """
    _HERE.captures.append(capture)
    try:
        yield
    finally:
        _HERE.captures.pop()


def _again(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function; every call but the first, which is here, enters everything again."""
    makes, calls = [capture() for capture in _HERE.captures], [1]

    def run(*args: Any, **options: Any) -> Any:
        with ExitStack() as stack:
            for make in makes if not calls else ():
                stack.enter_context(make())
            calls.clear()
            return function(*args, **options)

    return run if makes else function


def _checkpointed(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Do as torch does; inside a block, without the state of the process's generator.

    No noise of a block is drawn from it, and torch reads it under a lock that it may hold while it
    waits for the interpreter's: two workers that do so can wait for each other for ever.
    """
    if _HERE.captures:
        options["preserve_rng_state"] = False
    return _CHECKPOINT(_again(function), *given, **options)


# `checkpoint` looks it up by name, whoever has imported that; outside of blocks it does as before
if hasattr(torchs, "_checkpoint_impl"):  # torch 2.14 has it, 2.11 has not
    _CHECKPOINT = torchs._checkpoint_impl
    torchs._checkpoint_impl = _checkpointed
