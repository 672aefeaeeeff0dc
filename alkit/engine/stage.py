"""What executors run: a stage, one task of it, and a block under backprop as a stage."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from alkit.data import tree
from alkit.engine.device import device_of, place
from alkit.schedule.task import Task


class Stage(Protocol):
    """The mathematics of one stage; the engine sees to order, hand-over and threads.

    One on an accelerator says so by an attribute `device`: its times are then the device's.
    """

    def forward(self, payload: Any, batch: int, micro: int) -> Any:
        """Take the previous stage's output (stage 0: the batch); return the next stage's input."""

    def backward(self, payload: Any, batch: int, micro: int) -> Any:
        """Take what the next stage's backward returned, if it did; return the same for the
        previous."""

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step the optimisers."""


def run_task(stages: Sequence[Stage], task: Task, payload: Any, where: str) -> Any:
    """Run a task; an error is noted with `where`, and torch's profiler sees the task as a range.

    It follows the calling thread; for the workers' as well, give it
    `experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True)`.
    """
    # a range takes microseconds, also when nobody looks
    seen = record_function(f"alkit {task.kind} {task.stage}") if _profiled() else nullcontext()
    try:
        with seen:
            return getattr(stages[task.stage], task.kind)(payload, task.batch, task.micro)
    except BaseException as error:
        error.add_note(f"alkit: in {task} ({where})")
        raise


def _profiled() -> bool:
    return torch.autograd.profiler._is_profiler_enabled


class Inputs:
    """What a module runs on: its input, or a copy if it writes there (`ReLU(inplace=True)`).

    A leaf of the graph can't be written to, and others may need it. Where a module might write, the
    first input, of which it gets a copy anyway, shows whether it does.
    """

    def __init__(self, *modules: nn.Module) -> None:
        parts = (part for each in modules for part in each.modules())
        self.copied: list[tuple[Tensor, int]] | None = None  # with their versions before
        if not any(map(_may_write, parts)):
            self.copied = []

    def __call__(self, x: Any) -> Any:
        """Return x, or the copy."""
        if self.copied is not None and all(own._version == at for own, at in self.copied):
            self.copied = []
            return x
        x = tree.map_tensors(torch.clone, x)
        self.copied = [(own, own._version) for own in tree.tensors(x)]
        return x


def _may_write(part: nn.Module) -> bool:
    own = type(part).__module__.startswith(("torch.nn.modules.", "alkit."))
    return not own or getattr(part, "inplace", False) is True


class BlockStage:
    """A block under backprop: takes the gradient of its output, hands on that of its input.

    Args:
        loss: of (output, y) for the last block; the others pass y on.
        optimizer: of the block's own parameters; None if it has none.
    """

    def __init__(
        self,
        block: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        loss: Callable[[Any, Tensor], Tensor] | None = None,
    ) -> None:
        self.block, self.optimizer, self.loss = block, optimizer, loss
        self.device, self.inputs = device_of(block), Inputs(block)
        self.kept: dict[tuple[int, int], tuple[Any, Any]] = {}

    def forward(self, payload: tuple[Any, Tensor], batch: int, micro: int) -> Any:
        """Take (x, y), keep the graph, hand on (output, y)."""
        x, y = payload
        x = tree.map_tensors(_leaf, place(x, self.block))
        output = self.block(self.inputs(x))
        if self.loss is not None:
            output = self.loss(output, place(y, self.block))
        self.kept[batch, micro] = x, output
        return None if self.loss is not None else (tree.detach(output), y)

    def backward(
        self, payload: list[Tensor | None] | None, batch: int, micro: int
    ) -> list[Tensor | None]:
        """Take the gradients of the output's floating tensors, return those of the input's.

        A tensor that the next block leaves alone, such as an LSTM's last states, has None.
        """
        x, output = self.kept.pop((batch, micro))
        payload = place(payload, self.block)
        roots = [tensor for tensor in tree.tensors(output) if tensor.requires_grad]
        if payload is None:
            torch.autograd.backward(roots)  # the loss
        else:
            found = [pair for pair in zip(roots, payload, strict=True) if pair[1] is not None]
            torch.autograd.backward([root for root, _ in found], [own for _, own in found])
        return [tensor.grad for tensor in tree.tensors(x) if tensor.requires_grad]

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step and clear the gradients."""
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tree.differentiable(tensor))
