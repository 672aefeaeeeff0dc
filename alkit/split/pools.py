"""Where computing does not stop the loop: a thread for each party."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from alkit.engine.caller import CallerState


async def in_thread(function: Callable[..., Any], *given: Any) -> Any:
    """Return what a function gives that waits for a disk, or computes once a round."""
    return await _to_end(asyncio.ensure_future(asyncio.to_thread(function, *given)))


async def _to_end(future: "asyncio.Future[Any]") -> Any:
    """Wait for what runs on a thread, also where nobody wants it any more: it can't be stopped."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


class Pool:
    """A thread that computes as the caller would, one call after the other.

    Args:
        threads: operator threads.
    """

    def __init__(self, threads: int) -> None:
        self.caller = CallerState.here()
        self.executor = ThreadPoolExecutor(
            1, "alkit-split", initializer=torch.set_num_threads, initargs=(threads,)
        )

    async def run(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Return what a function gives; it ends even where nobody waits any more."""

        def call() -> Any:
            with self.caller.training():
                return function(*given, **named)

        return await _to_end(asyncio.get_running_loop().run_in_executor(self.executor, call))

    def close(self) -> None:
        """End the thread."""
        self.executor.shutdown()
