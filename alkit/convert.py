"""Any list of blocks as an AL model, or as its BP twin; shapes are found by a dry run."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit import tree
from alkit.backprop import BPModel
from alkit.layers import AE, AL, ENC, adam, evaluating
from alkit.model import ALModel

__all__ = ["Pooled", "pool", "to_al", "to_bp"]

Pool = Callable[[Any], Tensor]


def pool(s: Any) -> Tensor:
    """Reduce a block's output to one row of features a sample.

    (B, D) stays; (B, T, D) becomes its mean over positions, over the real ones if s is a tuple
    whose second tensor is a boolean mask (B, T); (B, C, H, W) becomes 2 x 2 means, (B, 4 C). Of
    any other tuple the first tensor counts.

    Raises:
        ValueError: a tensor of another rank.
    """
    x, *others = tree.tensors(s)
    if x.dim() == 2:
        return x
    if x.dim() == 3:
        if others and others[0].dtype == torch.bool and others[0].shape == x.shape[:2]:
            weights = others[0].unsqueeze(2).to(x.dtype)
            return (x * weights).sum(1) / weights.sum(1).clamp(min=1)
        return x.mean(1)
    if x.dim() == 4:
        return F.adaptive_avg_pool2d(x, 2).flatten(1)
    raise ValueError(f"no pooling for a tensor of shape {tuple(x.shape)}: give pool= of your own")


class Pooled(nn.Module):
    """Pooling, then a module on the features: a bridge, or the head of a BP twin."""

    def __init__(self, body: nn.Module, pool: Pool = pool) -> None:
        super().__init__()
        self.pool, self.body = pool, body

    def forward(self, s: Any) -> Tensor:
        """Return body(pool(s))."""
        return self.body(self.pool(s))


def to_al(
    blocks: Iterable[nn.Module],
    num_classes: int,
    sample: Any,
    *,
    code_dim: int = 128,
    lr: float | Mapping[str, float] = 1e-3,
    pool: Pool = pool,
    optimizer: Callable[..., torch.optim.Optimizer] = adam,
) -> ALModel:
    """Turn the blocks of a BP model into an AL model, one layer a block, without its head.

    Every layer gets b = pool, linear, tanh; g = linear, tanh; h = linear. The first autoencoder
    loss is cross-entropy against the class, on unbounded scores; the others, and the associated
    losses, are mean squared errors.

    Args:
        blocks: modules, each taking what the one before returns; used as they are, not copied.
        sample: a batch that the first block takes; two samples are enough. It is run once, in
            evaluation mode, so buffers don't change.
        code_dim: K, the width of the label code.
        pool: reduces a block's output to (B, D).
    """
    layers, width = [], num_classes
    for block, features in _dry_run(blocks, sample, pool):
        bridge = Pooled(nn.Sequential(nn.Linear(features, code_dim), nn.Tanh()), pool)
        g = nn.Sequential(nn.Linear(width, code_dim), nn.Tanh())
        h = nn.Linear(code_dim, width)
        loss = F.mse_loss if layers else F.cross_entropy
        layers.append(AL(ENC(block, bridge), AE(g, h, loss), lr, optimizer))
        width = code_dim
    return ALModel(layers)


def to_bp(
    blocks: Iterable[nn.Module],
    num_classes: int,
    sample: Any,
    *,
    lr: float = 1e-3,
    pool: Pool = pool,
    optimizer: Callable[..., torch.optim.Optimizer] = adam,
) -> BPModel:
    """Close the blocks with a linear head on the pooled output: the BP twin of `to_al`."""
    pairs = list(_dry_run(blocks, sample, pool))
    head = Pooled(nn.Linear(pairs[-1][1], num_classes), pool)
    return BPModel([*(block for block, _ in pairs), head], lr, optimizer=optimizer)


@torch.no_grad()
def _dry_run(blocks: Iterable[nn.Module], sample: Any, pool: Pool) -> list[tuple[nn.Module, int]]:
    """Return every block with the number of features that pooling makes of its output."""
    pairs, x = [], sample
    for index, block in enumerate(blocks):
        if not isinstance(block, nn.Module):
            raise TypeError(f"block {index} must be a module, got {block!r}")
        with evaluating(block):
            x = block(x)
        features = pool(x)
        if features.dim() != 2:
            raise ValueError(f"pool gives {tuple(features.shape)} for block {index}: wanted (B, D)")
        pairs.append((block, features.shape[1]))
    if not pairs:
        raise ValueError("there are no blocks")
    return pairs
