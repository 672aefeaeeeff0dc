r"""Targets, as the differences delta_n = t_n - s_n that they are used as.

    delta_(N-1) = -beta (softmax(s_(N-1)) - onehot(y))          against the loss gradient: of
                  -beta B dL/ds_(N-1)                           cross-entropy, and of any other L
    difference    delta_(n-1) = G_n(s_n + delta_n) - G_n(s_n)   DTP
    plain         delta_(n-1) = G_n(s_n + delta_n) - s_(n-1)    TP: no correction

    block n learns from  1/2 mean |s_n - t_n|^2, whose gradient is -(ds_n / dtheta)^T delta_n / b

Carrying the difference instead of the target loses no digits where beta is small, and gives exactly
0 where it is 0. Gradients are beta times those of the loss.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softmax

from alkit.dtp.block import Block, Pass


def output_target(
    scores: Tensor, y: Tensor, beta: float, loss: Callable[..., Tensor] = cross_entropy
) -> Tensor:
    """Return the delta of the output, (B, C).

    Args:
        loss: of (scores, y), a mean over the samples.
    """
    if loss is cross_entropy and y.is_floating_point():
        return -beta * (softmax(scores.detach(), dim=1) - y)
    free = scores.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(free, y), free)
    return -beta * len(scores) * gradient


@torch.no_grad()
def next_target(block: Block, own: Pass, delta: Tensor, rule: str = "difference") -> Tensor:
    """Return the delta of the block below, by "difference" or "plain"."""
    base = own.x if rule == "plain" else block.feedback(own.s, own.notes)
    return block.feedback(own.s + delta, own.notes) - base


def local_gradients(block: Block, own: Pass, delta: Tensor) -> list[Tensor]:
    """Return the gradients of the local loss of a block by its forward weights."""
    found = block.forward_parameters()
    return list(torch.autograd.grad(own.s, found, -delta / len(own.s))) if found else []
