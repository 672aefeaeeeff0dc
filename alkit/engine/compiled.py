"""Functions as one compiled call that holds no interpreter's lock."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

Compile = Literal[False, "steps"]
VERSIONS = 128
WITHOUT_LOCK = {"cpp_wrapper": True}  # of one call, never of the process


def check_compile(given: object) -> None:
    """Refuse what says nothing about compiling.

    Raises:
        ValueError: says what to give.
    """
    if given is not False and given != "steps":
        raise ValueError(
            f"compile is {given!r}: give 'steps', or compile blocks yourself by block.compile()"
        )


class NotCompiled(Exception):
    """Why something can't be compiled."""


_changed = threading.Condition()
_now = {"steps": 0, "compilations": 0}


@contextmanager
def no_compilation() -> Iterator[None]:
    """Wait until nothing is in `compiling`, and keep it waiting meanwhile: an optimiser steps.

    `torch.compiler.is_compiling()` is the whole process's, and torch's optimisers ask it: a step
    beside another thread's compilation takes its powers of beta in float32, and so other bits.
    """
    with _changed:
        _changed.wait_for(lambda: not _now["compilations"])
        _now["steps"] += 1
    try:
        yield
    finally:
        _end("steps")


@contextmanager
def compiling() -> Iterator[None]:
    """Raise `NotCompiled` for whatever torch's compiler raises in this block; no optimiser steps
    meanwhile, see `no_compilation`."""
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import InductorError

    with _changed:
        _now["compilations"] += 1
        _changed.wait_for(lambda: not _now["steps"])
    try:
        yield
    except (TorchDynamoException, InductorError) as error:
        words = (str(error).strip() or type(error).__name__).splitlines()
        raise NotCompiled(f"torch.compile can't take it: {words[0]}") from error
    finally:
        _end("compilations")


def _end(what: str) -> None:
    with _changed:
        _now[what] -= 1
        _changed.notify_all()


def without_lock(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return a function of tensors as one compiled call that holds no interpreter's lock.

    Args:
        options: of the compiler, beside those.
    """
    how: dict[str, Any] = {"fullgraph": True, "dynamic": False, "options": WITHOUT_LOCK | options}
    how |= {"isolate_recompiles": True, "recompile_limit": VERSIONS}  # its types lack these
    compiled = torch.compile(function, **how)

    def call(*given: Any) -> Any:
        _count_no_frames()
        return compiled(*given)

    return call


def _count_no_frames() -> None:
    """Keep torch from a check that fails by chance where threads call compiled functions at once.

    With `fullgraph` a call counts the compiled frames that it met, in one number for the process;
    beside others it may read 0 and raise, after its step. Where the count is running already, as
    in a call inside a call, nothing is checked; so from now on it is running.
    """
    from torch._C._dynamo import eval_frame

    start = getattr(eval_frame, "set_fullgraph_compiled_frame_count", None)  # not in all versions
    if start is not None:
        start(0)
