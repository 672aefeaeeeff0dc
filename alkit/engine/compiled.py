"""`torch.compile` for blocks, on request."""

from collections.abc import Iterable
from typing import Any, Literal

from torch import nn

__all__ = ["WITHOUT_LOCK", "Compile", "check_compile", "compile_blocks"]

Compile = bool | Literal["steps", "auto"]
VERSIONS = 128
WITHOUT_LOCK = {"cpp_wrapper": True}  # of one call, never of the process


def check_compile(given: object) -> None:
    """Refuse what says nothing about compiling.

    Raises:
        ValueError: says what to give.
    """
    if not isinstance(given, bool) and given not in ("steps", "auto"):
        raise ValueError(f"compile is {given!r}: give True, False, 'steps' or 'auto'")


def compile_blocks(blocks: Iterable[object], how: Compile = True) -> None:
    """Let blocks run compiled from their next call on; parameters, names and state stay.

    Noise still follows its key where a compiled block draws by operators that take a generator;
    where it does not, its first forward says so (`alkit.engine.random`).

    Args:
        how: with "steps" forward and backward hold no interpreter's lock; what draws random numbers
            that follow from no seed raises when it is compiled, before the first step.
    """
    # blocks share the code of their call, and so its number of versions
    options: dict[str, Any] = {"recompile_limit": VERSIONS}
    if how == "steps":
        from alkit.engine.compiled_noise import FROM_KNOWN_CALL  # brings the compiler with it

        noise = {"post_grad_custom_pre_pass": FROM_KNOWN_CALL}
        options |= {"options": WITHOUT_LOCK | noise}
    for block in blocks:
        if isinstance(block, nn.Module):
            block.compile(**options)
