"""What stands between a backward and an update: accumulation, clipping, scaling for float16."""

from collections.abc import Container, Iterable

import torch
from torch import Tensor, nn

from alkit.engine.compiled import no_compilation


class Steps:
    """How the gradients of a part that updates by itself become steps of its optimisers.

    An AL layer has one of its own, and so has a model under backprop: nobody waits for another's
    norm or overflow.

    Args:
        clip: largest norm of the gradients of one optimiser; None: no limit.
        accumulate: batches whose mean gradient makes a step.
        scaler: for float16, whose small gradients are lost unless the loss is scaled up; a step
            that overflows is left out, and the scale halved.
    """

    def __init__(
        self,
        clip: float | None = None,
        accumulate: int = 1,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        if clip is not None and clip <= 0:
            raise ValueError(f"clip is {clip}: give a positive norm, or None")
        self.clip, self.accumulate, self.scaler = clip, accumulate, scaler
        self.held = 0  # batches whose gradients wait for a step

    def backward(self, module: nn.Module, losses: Iterable[Tensor]) -> None:
        """Add the gradients of a batch's losses to those that are held."""
        if not self.held:
            module.zero_grad(set_to_none=True)
        torch.autograd.backward([self._scaled(loss) for loss in losses if loss.requires_grad])

    @property
    def plain(self) -> bool:
        """Whether a batch's gradients are what a step is made of, as they are."""
        return self.clip is None and self.accumulate == 1 and self.scaler is None

    def take(self, module: nn.Module, gradients: Iterable[tuple[nn.Parameter, Tensor]]) -> None:
        """Add the gradients of a batch to those that are held, as `backward` does."""
        if not self.held:
            module.zero_grad(set_to_none=True)
        for parameter, gradient in gradients:
            own = gradient if self.accumulate == 1 else gradient / self.accumulate
            parameter.grad = own if parameter.grad is None else parameter.grad.add_(own)

    def update(self, optimizers: Iterable[torch.optim.Optimizer | None]) -> None:
        """Step, if the gradients of enough batches are held."""
        self.held += 1
        if self.held == self.accumulate:
            self.finish(optimizers)

    def finish(self, optimizers: Iterable[torch.optim.Optimizer | None]) -> None:
        """Step with what is held, if anything: the mean over fewer batches at an epoch's end."""
        if not self.held:
            return
        given = [optimizer for optimizer in optimizers if optimizer is not None]
        scaled = self.scaler is not None and any(map(_gradients, given))
        for optimizer in given:
            self._step(optimizer)
        if self.scaler is not None and scaled:
            self.scaler.update()
        self.held = 0

    def _scaled(self, loss: Tensor) -> Tensor:
        loss = loss if self.accumulate == 1 else loss / self.accumulate
        return loss if self.scaler is None else self.scaler.scale(loss)

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = _gradients(optimizer)
        if self.scaler is not None and gradients:
            self.scaler.unscale_(optimizer)
        if self.held < self.accumulate:
            for gradient in gradients:
                gradient.mul_(self.accumulate / self.held)
        if self.clip is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.clip)
        with no_compilation():
            if self.scaler is not None and gradients:
                self.scaler.step(optimizer)
            else:
                optimizer.step()


def check_untied(kind: str, parts: Iterable[nn.Module]) -> None:
    """See that no two parts share a parameter: each would update it, at different moments.

    Raises:
        ValueError: names the first one that they share.
    """
    owner: dict[int, tuple[int, str]] = {}
    for at, part in enumerate(parts):
        for name, parameter in part.named_parameters():
            other, its_name = owner.setdefault(id(parameter), (at, name))
            if other != at:
                raise ValueError(
                    f"{kind} {other} and {at} share a parameter ({its_name} and {name}): untie it,"
                    " or have both uses in one of them"
                )


def check_reached(blocks: Iterable[nn.Module], reached: Container[int] | None = None) -> None:
    """See that every block that can learn has a gradient after the first backward.

    Args:
        reached: ids of the parameters that get one; default those that hold one.
    Raises:
        ValueError: names the block that has none, which would stay as it is without a word.
    """
    for number, block in enumerate(blocks):
        own = [each for each in block.parameters() if each.requires_grad]
        if reached is None:
            lost = all(each.grad is None for each in own)
        else:
            lost = not any(id(each) in reached for each in own)
        if own and lost:
            raise ValueError(
                f"block {number} ({type(block).__name__}) can learn and gets no gradient: something"
                " above it detaches, or gives whole numbers; freeze it (requires_grad_(False)) if"
                " that is meant"
            )


def _gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    held = (p.grad for group in optimizer.param_groups for p in group["params"])
    return [gradient for gradient in held if gradient is not None]
