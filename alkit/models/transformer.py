"""A Transformer encoder as a list of blocks; every block takes and returns (x_BTD, mask_BT).

B batch, T tokens, N real tokens of a batch, D width, V vocabulary. The mask is true at real tokens.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Masked = tuple[Tensor, Tensor]


class TokenEmbedding(nn.Module):
    """Look up token vectors: (tokens_BT, mask_BT) -> (x_BTD, mask_BT).

    Args:
        vocabulary: V, ids 0 .. V - 1.
        pad: the id whose vector stays zero; None: all are trained, as published.
        positions: "none", as published, or "sinusoid": a fixed wave a position is added.
        vectors: float (V, D) to start from; random ones by default.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        dropout: float = 0.0,
        pad: int | None = 0,
        *,
        positions: str = "none",
        vectors: Tensor | None = None,
    ) -> None:
        super().__init__()
        if positions not in ("none", "sinusoid"):
            raise ValueError(f"positions is {positions!r}: give none or sinusoid")
        if vectors is not None and vectors.shape != (vocabulary, width):
            raise ValueError(
                f"vectors are {tuple(vectors.shape)}, the table is {(vocabulary, width)}:"
                " set width to that of the vectors"
            )
        # a copy: training changes the table, and the caller may start several models from vectors
        own = None if vectors is None else vectors.clone()
        self.table = nn.Embedding(vocabulary, width, padding_idx=pad, _weight=own)
        self.positions = positions
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Masked) -> Masked:
        """Return the vectors and the mask."""
        tokens_BT, mask_BT = inputs
        x_BTD = self.table(tokens_BT)
        if self.positions == "sinusoid":
            x_BTD = x_BTD + sinusoids(*x_BTD.shape[1:]).to(x_BTD)
        return self.dropout(x_BTD), mask_BT


def sinusoids(tokens: int, width: int) -> Tensor:
    """Return the waves of Vaswani et al. 2017 (3.5): sines in the even columns, cosines in the odd.

    Float (T, D); wave lengths from 2 pi to 10,000 x 2 pi positions.
    """
    position_T1 = torch.arange(tokens, dtype=torch.float32).unsqueeze(1)
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    waves_TD = torch.empty(tokens, width)
    waves_TD[:, 0::2] = torch.sin(position_T1 * rate)
    waves_TD[:, 1::2] = torch.cos(position_T1 * rate[: width // 2])
    return waves_TD


class EncoderBlock(nn.Module):
    """Pre-norm encoder block, with a layer norm at its end as every AL block has one.

    x + dropout(attention(norm(x))), then x + dropout(ffn(norm(x))), then norm.
    """

    def __init__(self, width: int, heads: int, ffn: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attention = nn.MultiheadAttention(width, heads, dropout, batch_first=True)
        self.ffn = nn.Sequential(
            nn.Linear(width, ffn), nn.ReLU(), nn.Dropout(dropout), nn.Linear(ffn, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Masked) -> Masked:
        """Attend among the real tokens; padding is left out of all work but attention's, and 0."""
        x_BTD, mask_BT = inputs
        places_N = self._places(mask_BT)
        x_ND = _taken(x_BTD, places_N)
        x_ND = x_ND + self.dropout(self._attend(self.norms[0](x_ND), places_N, mask_BT))
        x_ND = x_ND + self.dropout(self.ffn(self.norms[1](x_ND)))
        y_BTD = _spread(self.norms[2](x_ND), places_N, mask_BT)
        if mask_BT.device.type != "cpu":
            y_BTD = self._without_padding(y_BTD, mask_BT)
        return y_BTD, mask_BT

    def _places(self, mask_BT: Tensor) -> Tensor:
        """Return the positions that are worked on.

        To ask an accelerator how many tokens are real is to wait for it: there it is all.
        """
        if mask_BT.device.type != "cpu":
            return torch.arange(mask_BT.numel(), device=mask_BT.device)
        return mask_BT.flatten().nonzero().squeeze(1)

    def _without_padding(self, y_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        return y_BTD * mask_BT.unsqueeze(2)

    def _attend(self, x_ND: Tensor, places_N: Tensor, mask_BT: Tensor) -> Tensor:
        """Do what `nn.MultiheadAttention` does, with its weights."""
        own = self.attention
        qkv_ND = F.linear(x_ND, own.in_proj_weight, own.in_proj_bias)
        qkv = _spread(qkv_ND, places_N, mask_BT).unflatten(2, (3, own.num_heads, own.head_dim))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, T, D / heads)
        dropout = own.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask_BT[:, None, None, :], dropout_p=dropout
        )
        return own.out_proj(_taken(y.transpose(1, 2).flatten(2), places_N))


def _taken(x_BTD: Tensor, places_N: Tensor) -> Tensor:
    """Return the rows of the real tokens, (N, D)."""
    return x_BTD.flatten(0, 1).index_select(0, places_N)


def _spread(x_ND: Tensor, places_N: Tensor, mask_BT: Tensor) -> Tensor:
    """Put the rows of the real tokens back to their places, (B, T, D), and zeros between them."""
    padded = x_ND.new_zeros(mask_BT.numel(), x_ND.shape[1]).index_copy(0, places_N, x_ND)
    return padded.view(*mask_BT.shape, -1)


class LegacyNorm(nn.LayerNorm):
    """The published layer norm, (..., D) -> (..., D): over the unbiased deviation plus eps."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised x."""
        deviation = x.std(-1, keepdim=True) + self.eps
        return self.weight * (x - x.mean(-1, keepdim=True)) / deviation + self.bias


class LegacyEncoderBlock(EncoderBlock):
    """The block as published: it works on padding too, and half of its parameters are never used.

    Matrices begin with Xavier's uniform numbers, each of its own size; biases as `nn.Linear` makes
    them. The templates of attention, FFN and norms that the published code copies stay registered;
    they get no gradient.
    """

    def __init__(self, width: int, heads: int, ffn: int, dropout: float = 0.1) -> None:
        super().__init__(width, heads, ffn, dropout)
        self.norms = nn.ModuleList(LegacyNorm(width, eps=1e-6) for _ in range(3))
        own = self.attention
        matrices = [*own.in_proj_weight.detach().chunk(3), own.out_proj.weight]
        matrices += [part.weight for part in self.ffn if isinstance(part, nn.Linear)]
        for matrix in matrices:
            nn.init.xavier_uniform_(matrix)
        for bias in (own.in_proj_bias, own.out_proj.bias):
            nn.init.uniform_(bias, -(width**-0.5), width**-0.5)
        attention = nn.MultiheadAttention(width, heads, dropout, batch_first=True)
        expand, shrink = nn.Linear(width, ffn), nn.Linear(ffn, width)
        norms = [LegacyNorm(width) for _ in range(2)]
        self.unused = nn.ModuleList([attention, expand, shrink, *norms])

    def _places(self, mask_BT: Tensor) -> Tensor:
        """Return all positions: padding is worked on, but not attended to."""
        return torch.arange(mask_BT.numel(), device=mask_BT.device)

    def _without_padding(self, y_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        return y_BTD  # as published: what is made of padding goes on


def transformer(
    vocabulary: int,
    *,
    blocks: int = 2,
    width: int = 64,
    heads: int = 4,
    ffn: int = 128,
    dropout: float = 0.1,
    positions: str = "none",
    vectors: Tensor | None = None,
    legacy: bool = False,
) -> list[nn.Module]:
    """Return an embedding block and `blocks` encoder blocks.

    Args:
        positions, vectors: of the embedding, see `TokenEmbedding`.
        legacy: the published blocks, see `LegacyEncoderBlock`; padding has a trained vector, and
            the embedding has no dropout.
    Raises:
        ValueError: the width is not a multiple of the number of heads.
    """
    if width % heads:
        raise ValueError(f"width {width} is not a multiple of {heads} heads")
    kind = LegacyEncoderBlock if legacy else EncoderBlock
    encoders = [kind(width, heads, ffn, dropout) for _ in range(blocks)]
    first_dropout, pad = (0.0, None) if legacy else (dropout, 0)
    table = TokenEmbedding(
        vocabulary, width, first_dropout, pad, positions=positions, vectors=vectors
    )
    return [table, *encoders]
