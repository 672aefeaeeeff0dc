"""What stands between a backward and an update, and what is looked at there."""

from collections.abc import Container, Iterable

import torch
from torch import Tensor, nn

from alkit.engine.compiled import no_compilation


def backward(module: nn.Module, losses: Iterable[Tensor]) -> None:
    """Leave the gradients of a batch's losses in the parameters."""
    module.zero_grad(set_to_none=True)
    torch.autograd.backward([loss for loss in losses if loss.requires_grad])


def step(optimizer: torch.optim.Optimizer | None, clip: float | None = None) -> None:
    """Step once, if there is something to train.

    Args:
        clip: largest norm of all gradients together; None for no limit.
    """
    if optimizer is None:
        return
    if clip is not None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(parameters, clip)
    with no_compilation():
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
