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

from alkit.dtp.networks import Net, Pass


def output_target(
    scores: Tensor, y: Tensor, beta: float, loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
) -> Tensor:
    """Return the output's delta, (B, C).

    Args:
        loss: of (scores, y), a mean over the samples.
    """
    if loss is cross_entropy and y.is_floating_point():
        return -beta * (softmax(scores.detach(), dim=1) - y)
    free = scores.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(free, y), free)
    return -beta * len(scores) * gradient


@torch.no_grad()
def next_target(net: Net, run: Pass, n: int, delta: Tensor, rule: str = "difference") -> Tensor:
    """Return the delta of the block below n, by "difference" or "plain"."""
    feedback, notes = net.blocks[n].feedback, run.notes[n]
    base = run.inputs[n] if rule == "plain" else feedback(run.s[n], notes)
    return feedback(run.s[n] + delta, notes) - base


def local_gradients(net: Net, run: Pass, n: int, delta: Tensor) -> list[Tensor]:
    """Return the gradients of block n's local loss by its forward weights."""
    s, own = run.s[n], net.blocks[n].forward_parameters()
    return list(torch.autograd.grad(s, own, -delta / len(s))) if own else []
