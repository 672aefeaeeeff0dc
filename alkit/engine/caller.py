"""The state that torch keeps a thread: workers begin with it as it is where a call is made.

A new thread starts with the defaults of torch for autocast, grad and inference mode and the default
device; a new process also for the default dtype and deterministic algorithms.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@contextmanager
def as_ever() -> Iterator[None]:
    """Don't follow the caller's autocast: parts made before training have types of their blocks."""
    with ExitStack() as stack:
        for kind in _kinds():
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@dataclass(frozen=True)
class CallerState:
    """The calling thread's state, to be entered by another thread or process."""

    autocast: dict[str, torch.dtype]  # by kind of device, of those where it is on
    grad: bool
    inference: bool
    device: torch.device
    dtype: torch.dtype
    deterministic: tuple[bool, bool]  # must algorithms be so, and do others only warn

    @classmethod
    def here(cls) -> "CallerState":
        """Read the state of the calling thread."""
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        return cls(
            {k: torch.get_autocast_dtype(k) for k in _kinds() if torch.is_autocast_enabled(k)},
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_default_device(),
            torch.get_default_dtype(),
            (torch.are_deterministic_algorithms_enabled(), warn_only),
        )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have this state in the calling thread; autocast keeps no casts of weights.

        Its cache is one for all threads, so its content would depend on timing.
        """
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            if self.device != torch.get_default_device():
                stack.enter_context(self.device)
            for kind, dtype in self.autocast.items():
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
            if self.autocast:
                stack.callback(torch.clear_autocast_cache)  # an outer context holds old weights'
            yield

    @contextmanager
    def training(self) -> Iterator[None]:
        """Have this state, but with gradients: where stages run.

        Backward stays on the thread that asks for it: autograd's own one a device would run the
        layers of all workers there one after the other.
        """
        with self.entered(), torch.inference_mode(False), torch.enable_grad():
            with torch.autograd.set_multithreading_enabled(False):
                yield

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in a process of its own as if it were here."""
        torch.set_default_dtype(self.dtype)
        required, warn_only = self.deterministic
        torch.use_deterministic_algorithms(required, warn_only=warn_only)
        with self.entered():
            return function(*arguments)


def _kinds() -> list[str]:
    accelerator = torch.accelerator.current_accelerator()
    return ["cpu", *([accelerator.type] if accelerator else [])]
