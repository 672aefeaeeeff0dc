r"""The same losses and their gradients by hand, for blocks whose feedback is R B psi(y).

With D1 = psi(F(x + dx)) - psi(y), D2 = psi(y + dy) - psi(y), e = B D2 and b samples:

    loss      =  1/b [ |e|^2 - 2 <dx, B D1> ]
    gradient  =  2/b [ corr(D2, e) - corr(D1, dx) ]         one weight gradient of a batch of 2 b

    autograd form   1 forward + 3 feedback + 3 weight gradients     7 convolutions
    closed form     1 forward + 1 feedback + 1 of a double batch    4

(As published the clean forward pass is run again in every iteration: 8.)

<B, gradient> = 2/b [ |e|^2 - <dx, B D1> ], so the loss needs no further convolution either.
"""

import torch
from torch import Tensor

from alkit.dtp.block import Block, Notes


@torch.no_grad()
def l_drl_gradient(
    block: Block,
    x: Tensor,
    y: Tensor,
    notes: Notes,
    dx: Tensor,
    dy: Tensor,
    *,
    index: str = "own",
    base: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (loss, gradient by the feedback's weight); see `alkit.dtp.losses.l_drl`.

    Args:
        base: psi(y), if it is known already.
    """
    piece, _ = block.weighed()
    base = block.psi(y, notes) if base is None else base
    noisy, own = block(x + dx)
    first = block.psi(noisy, own if index == "own" else notes) - base
    second = block.psi(y + dy, notes) - base
    weight, outer = piece.feedback_weight, block.flat(dx, notes)
    error = block.weigh(second, notes)
    outer, inner = torch.cat([error, outer]), torch.cat([second, -first])
    gradient = piece.feedback_gradient(outer, inner).mul_(2 / len(x))
    return (weight * gradient).sum() - error.square().sum() / len(x), gradient


@torch.no_grad()
def reconstruction_gradient(
    block: Block, x: Tensor, notes: Notes, dx: Tensor, *, index: str = "own"
) -> tuple[Tensor, Tensor]:
    """Return (loss, gradient by the feedback's weight); see `alkit.dtp.losses.reconstruction`."""
    piece, _ = block.weighed()
    noisy, own = block(x + dx)
    used = own if index == "own" else notes
    inner = block.psi(noisy, used)
    rebuilt = block.weigh(inner, used)
    error = rebuilt - block.flat(x + dx, used)
    gradient = piece.feedback_gradient(error, inner).mul_(2 / len(x))
    return error.square().sum() / len(x), gradient
