r"""The same losses and their gradients by hand, for blocks whose feedback is R B psi(y).

With D1 = psi(F(x + dx)) - psi(y), D2 = psi(y + dy) - psi(y), e = B D2 and b samples:

    loss      =  1/b [ |e|^2 - 2 <dx, B D1> ]
    gradient  =  2/b [ corr(D2, e) - corr(D1, dx) ]         one weight gradient of a batch of 2 b

    autograd form   1 forward + 3 feedback + 3 weight gradients     7 convolutions
    closed form     1 forward + 1 feedback + 1 of a double batch    4

(As published the clean forward pass is run again in every iteration: 8.)

<B, gradient> = 2/b [ |e|^2 - <dx, B D1> ], so the loss needs no further convolution either.

Products of D2 at different places have the mean 0, for dy is independent there (up to sigma^4,
where psi bends). `expected_gradient` leaves them out, and of corr(D2, B D2) only B times sums of
squares is left: 2 convolutions, less noise, the same mean; not the same numbers.
"""

import torch
from torch import Tensor

from alkit.dtp.block import Block, Notes

__all__ = ["expected_gradient", "l_drl_gradient", "reconstruction_gradient"]


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
    first, second = _differences(block, x, y, notes, dx, dy, index, base)
    error = block.weigh(second, notes)
    outer = torch.cat([error, block.flat(dx, notes)])
    gradient = piece.feedback_gradient(outer, torch.cat([second, -first])).mul_(2 / len(x))
    loss = (piece.feedback_weight * gradient).sum() - error.square().sum() / len(x)
    return loss, gradient


@torch.no_grad()
def expected_gradient(
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
    """Return (loss, gradient) with less noise than `l_drl_gradient`; arguments as there.

    The mean is the same but for what psi's bend makes of dy's mean, of the order of sigma^4.

    gradient  =  2/b [ B S - corr(D1, dx) ],    <B^2, S> the mean of |B D2|^2
    """
    piece, at = block.weighed()
    first, second = _differences(block, x, y, notes, dx, dy, index, base)
    squares = piece.feedback_squares(second, notes[at])
    outer = block.flat(dx, notes)
    weight, corr = piece.feedback_weight, piece.feedback_gradient(outer, first)
    scaled = weight * squares
    loss = ((weight * scaled).sum() - 2 * (weight * corr).sum()) / len(x)
    return loss, scaled.sub_(corr).mul_(2 / len(x))


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


def _differences(
    block: Block,
    x: Tensor,
    y: Tensor,
    notes: Notes,
    dx: Tensor,
    dy: Tensor,
    index: str,
    base: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return (D1, D2)."""
    base = block.psi(y, notes) if base is None else base
    noisy, own = block(x + dx)
    first = block.psi(noisy, own if index == "own" else notes) - base
    return first, block.psi(y + dy, notes) - base
