"""What this process is doing, for whoever watches over it: at work on something, or waiting."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Beat(NamedTuple):
    """The last sign of life.

    Attributes:
        label: what is being done.
        waiting: for another process; then it is not this one that hangs.
        since_s: monotonic time of the beat.
    """

    label: str
    waiting: bool
    since_s: float


_last: Beat | None = None


def beat(label: str, *, waiting: bool = False) -> None:
    """Say that something has begun; who does not say so again in time is taken to hang."""
    global _last
    _last = Beat(label, waiting, time.monotonic())


@contextmanager
def waiting(label: str) -> Iterator[None]:
    """Say that this process waits for another, for as long as the block lasts."""
    beat(label, waiting=True)
    try:
        yield
    finally:
        beat(f"after {label}")


def last() -> Beat | None:
    """Return the last beat; None if there was none."""
    return _last
