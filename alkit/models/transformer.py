"""A Transformer encoder as a list of blocks; every block takes and returns (x_BTD, mask_BT).

B batch, T tokens, D width, V vocabulary. The mask is true at real tokens.
"""

from torch import Tensor, nn

__all__ = ["EncoderBlock", "TokenEmbedding", "transformer"]

Masked = tuple[Tensor, Tensor]


class TokenEmbedding(nn.Module):
    """Look up token vectors: (tokens_BT, mask_BT) -> (x_BTD, mask_BT).

    Args:
        vocabulary: V, ids 0 .. V - 1.
        pad: the id whose vector stays zero.
    """

    def __init__(self, vocabulary: int, width: int, dropout: float = 0.0, pad: int = 0) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width, padding_idx=pad)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Masked) -> Masked:
        """Return the vectors and the mask."""
        tokens_BT, mask_BT = inputs
        return self.dropout(self.table(tokens_BT)), mask_BT


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
        """Attend among the real tokens; padding is never looked at."""
        x_BTD, mask_BT = inputs
        y_BTD = self.norms[0](x_BTD)
        y_BTD, _ = self.attention(
            y_BTD, y_BTD, y_BTD, key_padding_mask=~mask_BT, need_weights=False
        )
        x_BTD = x_BTD + self.dropout(y_BTD)
        x_BTD = x_BTD + self.dropout(self.ffn(self.norms[1](x_BTD)))
        return self.norms[2](x_BTD), mask_BT


def transformer(
    vocabulary: int,
    *,
    blocks: int = 2,
    width: int = 64,
    heads: int = 4,
    ffn: int = 128,
    dropout: float = 0.1,
) -> list[nn.Module]:
    """Return an embedding block and `blocks` encoder blocks.

    Raises:
        ValueError: the width is not a multiple of the number of heads.
    """
    if width % heads:
        raise ValueError(f"width {width} is not a multiple of {heads} heads")
    encoders = [EncoderBlock(width, heads, ffn, dropout) for _ in range(blocks)]
    return [TokenEmbedding(vocabulary, width, dropout), *encoders]
