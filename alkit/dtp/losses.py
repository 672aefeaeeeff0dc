"""The feedback losses of one block, differentiable by its feedback weights: the slow right form.

x, y = F(x) are constants, dx and dy noise of their shapes; b samples.

    l_drl            mean [ -2 <dx, G(F(x + dx)) - G(y)>  +  |G(y + dy) - G(y)|^2 ]
    reconstruction   mean   |(x + dx) - G(F(x + dx))|^2                         vanilla DTP and TP

L-DRL's minimum over B, for small noise or a linear block, is the transposed Jacobian of F, that of
reconstruction its inverse where it has one.
"""

import torch
from torch import Tensor

from alkit.dtp.block import Block, Notes

INDEX_MODES = ("own", "frozen")


def l_drl(
    block: Block, x: Tensor, y: Tensor, notes: Notes, dx: Tensor, dy: Tensor, *, index: str = "own"
) -> Tensor:
    """Return the loss of learned backprop targets for one draw of noise.

    Args:
        notes: of the clean pass.
        index: what G(F(x + dx)) unpools with: "own", the places of the noisy pass, as published;
            "frozen", those of the clean pass, which keeps the scale right.
    """
    noisy, own = _noisy(block, x + dx)
    base = block.feedback(y, notes)
    forward = block.feedback(noisy, own if index == "own" else notes) - base
    backward = block.feedback(y + dy, notes) - base
    return (backward.square().sum() - 2 * (dx * forward).sum()) / len(x)


def reconstruction(
    block: Block, x: Tensor, notes: Notes, dx: Tensor, *, index: str = "own"
) -> Tensor:
    """Return the squared error of rebuilding x + dx, as in Lee et al. (2015)."""
    noisy, own = _noisy(block, x + dx)
    rebuilt = block.feedback(noisy, own if index == "own" else notes)
    return (x + dx - rebuilt).square().sum() / len(x)


@torch.no_grad()
def _noisy(block: Block, x: Tensor) -> tuple[Tensor, Notes]:
    return block(x)
