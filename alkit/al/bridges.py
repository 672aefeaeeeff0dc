"""Bridges b: from the output s of a block to the width of the label code, (B, K).

    s --pool--> features (B, D) --body--> m (B, K)

B batch, T tokens, D features, C, H, W image, K width of the label code.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.base import tree
from alkit.models.traced import Block

Pool = Callable[[Any], Tensor]
# how modules are drawn before they go where their block is, whatever the caller's defaults are
DRAWN: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "none": nn.Identity,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}
GRID = 8  # a bridge with a convolution looks at a picture of at most 8 x 8


def pool(s: Any) -> Tensor:
    """Reduce the output of a block to one row of features a sample.

    (B, D) stays. (B, T, D) becomes its mean over positions, over the real ones if s is a tuple
    whose second tensor is a boolean mask (B, T). (B, C, H, W) becomes 2 x 2 means, (B, 4 C). Of any
    other tuple the first tensor counts.
    """
    x, *others = tree.tensors(s)
    if x.dim() == 2:
        return x
    if x.dim() == 3 and _masked(x, others):
        weights = others[0].unsqueeze(2).to(x.dtype)
        return (x * weights).sum(1) / weights.sum(1).clamp(min=1)
    if x.dim() == 3:
        return x.mean(1)
    if x.dim() == 4:
        return F.adaptive_avg_pool2d(x, 2).flatten(1)
    raise ValueError(f"no pooling for a tensor of shape {tuple(x.shape)}: give pool= of your own")


def _masked(x: Tensor, others: list[Tensor]) -> bool:
    return bool(others) and others[0].dtype == torch.bool and others[0].shape == x.shape[:2]


# 1-d modules with channels before positions, and the attribute with their number of channels
CHANNELS = {nn.Conv1d: "out_channels", nn.ConvTranspose1d: "out_channels"}
CHANNELS |= dict.fromkeys((nn.BatchNorm1d, nn.InstanceNorm1d), "num_features")
FEATURES_LAST = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.RNNBase, nn.MultiheadAttention)


def over_positions(s: Any) -> Tensor:
    """Reduce the channels of a sequence (B, C, L) to their means, (B, C)."""
    x: Tensor = next(tree.tensors(s))
    return x.mean(2)


def over_all(s: Any) -> Tensor:
    """Reduce the features of a traced network as `pool` does, whatever mask travels with them."""
    return pool(next(tree.tensors(s)))


def pool_of(block: nn.Module, s: Any) -> Pool:
    """Return how the output s of a block is pooled by default.

    Three dimensions are (B, T, D), unless the last module that computes has channels first. A mask
    that travels along in a traced network may mark words or padding: it is left aside.
    """
    x, *others = tree.tensors(s)
    if _masked(x, others) and any(isinstance(part, Block) for part in block.modules()):
        return over_all
    for leaf in reversed([*block.modules()]) if x.dim() == 3 else ():
        if isinstance(leaf, FEATURES_LAST):
            break
        if (width := CHANNELS.get(type(leaf))) is not None:
            return over_positions if x.shape[1] == getattr(leaf, width) else pool
    return pool


def flat(s: Any) -> Tensor:
    """Reduce as the publication did: pictures are flattened whole, all positions are averaged.

    Padding counts like text: features of a text depend on the longest text of its batch.
    """
    x = next(tree.tensors(s))
    return x.mean(1) if x.dim() == 3 else x.flatten(1)


class Pooled(nn.Module):
    """Pooling, then a module on the features: a bridge, or the head of a BP twin."""

    def __init__(self, body: nn.Module, pool: Pool = pool) -> None:
        super().__init__()
        self.pool, self.body = pool, body

    def forward(self, s: Any) -> Tensor:
        """Return body(pool(s))."""
        return self.body(self.pool(s))


class BearsOne(nn.Module):
    """A batch norm that uses running statistics where a channel has one value, without spread."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised x."""
        if self.training and x.numel() == x.shape[1]:
            held, scale = (self.running_mean, self.running_var), (self.weight, self.bias)
            return F.batch_norm(x, *held, *scale, eps=self.eps)  # type: ignore[arg-type]
        return super().forward(x)


class Norm2d(BearsOne, nn.BatchNorm2d):
    """Batch norm of pictures (B, C, H, W)."""


class ConvPool(nn.Module):
    """Pool pictures with a small network that the bridge owns: (B, C, H, W) -> (B, 4 width).

    Means over at most 8 x 8 fields, a 3 x 3 convolution (stride 2, if there are more than 2 x 2)
    with batch norm and ReLU, then 2 x 2 means.
    """

    def __init__(self, channels: int, width: int, size: int) -> None:
        super().__init__()
        self.grid, stride = min(size, GRID), 2 if size > 2 else 1
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, padding=1, bias=False, **DRAWN),
            Norm2d(width, **DRAWN),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )

    def forward(self, s: Any) -> Tensor:
        """Return the features; of several tensors the first counts."""
        x = next(tree.tensors(s))
        if x.shape[2:] != (self.grid, self.grid):  # means of one field each would be x itself
            x = F.adaptive_avg_pool2d(x, self.grid)
        return self.body(x)


class UnitLength(nn.Module):
    """Scale every row to length 1, as label codes have it."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, K) -> (B, K)."""
        return F.normalize(x, dim=1)
