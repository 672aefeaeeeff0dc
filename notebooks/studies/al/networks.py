"""The four networks of the AL experiments as lists of blocks, and the last block of their BP twins.

Pictures are (B, C, H, W). Texts are (x_BTD, mask_BT, ...): B batch, T tokens, D width, H hidden
width of one direction; the mask is true at real tokens.
"""

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

Masked = tuple[Tensor, Tensor]
States = tuple[Tensor, Tensor]  # h and c at each text's end, each (2, B, H)


def vgg_al(width: float = 1.0, *, channels: int = 3) -> list[nn.Sequential]:
    """Return four blocks: 3 x 3 convolutions with batch norm and ReLU, then a max pool.

    At width 1 a 32 x 32 image leaves as (B, 512, 2, 2).
    """
    blocks = []
    for widths in ((128, 256), (256, 512), (512,), (512,)):
        parts: list[nn.Module] = []
        for out in (round(width * each) for each in widths):
            parts += [*convolution(channels, out, 1), nn.ReLU()]
            channels = out
        blocks.append(nn.Sequential(*parts, nn.MaxPool2d(2)))
    return blocks


def vgg_al_head(num_classes: int, width: float = 1.0, hidden: int = 2500) -> nn.Sequential:
    """Return the published fifth block -> (B, classes)."""
    first, last = nn.Linear(4 * round(width * 512), hidden), nn.Linear(hidden, num_classes)
    return nn.Sequential(nn.Flatten(), first, nn.Sigmoid(), last)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut: identity, or a 3 x 3 convolution when the stride is 2.

    (The usual ResNet takes a 1 x 1 convolution there; the published AL code does not.)
    """

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        first, second = convolution(channels, out, stride), convolution(out, out, 1)
        self.body = nn.Sequential(first, nn.ReLU(), second)
        same = stride == 1 and channels == out
        self.shortcut = nn.Identity() if same else convolution(channels, out, stride)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, out, H / stride, W / stride)."""
        return self.activation(self.body(x) + self.shortcut(x))


def resnet18_al(width: float = 1.0, *, channels: int = 3) -> list[nn.Sequential]:
    """Return five blocks: stem, then four pairs of basic blocks of 64 to 512 channels.

    At width 1 a 32 x 32 image leaves as (B, 512, 4, 4).
    """
    before = round(width * 64)
    blocks = [nn.Sequential(convolution(channels, before, 1), nn.ReLU())]
    for stride, out in ((1, 64), (2, 128), (2, 256), (2, 512)):
        wide = round(width * out)
        pair = BasicBlock(before, wide, stride), BasicBlock(wide, wide, 1)
        blocks.append(nn.Sequential(*pair))
        before = wide
    return blocks


def resnet18_al_head(num_classes: int, width: float = 1.0) -> nn.Sequential:
    """Return the published sixth block -> (B, classes)."""
    scores = nn.Linear(round(width * 512), num_classes)
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), scores)


def convolution(channels: int, out: int, stride: int) -> nn.Sequential:
    """Return a 3 x 3 convolution with batch norm."""
    own = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
    return nn.Sequential(own, nn.BatchNorm2d(out))


class TokenEmbedding(nn.Module):
    """Look up token vectors: (tokens_BT, mask_BT) -> (x_BTD, mask_BT). Padding, 0, has zeros.

    Args:
        vectors: float (vocabulary, width) to start from; random ones by default.
    """

    def __init__(
        self, vocabulary: int, width: int, dropout: float = 0.0, vectors: Tensor | None = None
    ) -> None:
        super().__init__()
        # a copy: training changes the table, and the caller may start several models from vectors
        own = None if vectors is None else vectors.clone()
        self.table = nn.Embedding(vocabulary, width, padding_idx=0, _weight=own)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Masked) -> Masked:
        """Return the vectors and the mask."""
        tokens_BT, mask_BT = inputs
        return self.dropout(self.table(tokens_BT)), mask_BT


class BiLSTM(nn.Module):
    """One bidirectional layer, started from the states of the layer below, if there are any."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)

    def forward(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, States]:
        """(B, T, D) -> (B, T, 2 H), and the states at each text's own end."""
        x_BTD, mask_BT, *below = inputs
        lengths, options = mask_BT.sum(1).cpu(), {"batch_first": True}
        packed = pack_padded_sequence(x_BTD, lengths, enforce_sorted=False, **options)
        packed, states = self.lstm(packed, *below)
        y_BTD, _ = pad_packed_sequence(packed, total_length=mask_BT.shape[1], **options)
        return y_BTD, mask_BT, states


def lstm_al(
    vocabulary: int,
    *,
    blocks: int = 3,
    width: int = 300,
    hidden: int = 256,
    dropout: float = 0.0,
    vectors: Tensor | None = None,
) -> list[nn.Module]:
    """Return the embedding block and `blocks` BiLSTMs.

    Args:
        dropout: of the embedding's output; the published network has none.
    """
    widths = [width, *[2 * hidden] * (blocks - 1)]
    stack = [BiLSTM(each, hidden) for each in widths]
    return [TokenEmbedding(vocabulary, width, dropout, vectors), *stack]


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
        """Attend among the real tokens; padding gets 0."""
        x_BTD, mask_BT = inputs
        seen = self.norms[0](x_BTD)
        found, _ = self.attention(seen, seen, seen, ~mask_BT, need_weights=False)
        x_BTD = x_BTD + self.dropout(found)
        x_BTD = x_BTD + self.dropout(self.ffn(self.norms[1](x_BTD)))
        return self.norms[2](x_BTD) * mask_BT.unsqueeze(2), mask_BT


def transformer(
    vocabulary: int,
    *,
    blocks: int = 2,
    width: int = 64,
    heads: int = 4,
    ffn: int = 128,
    dropout: float = 0.1,
    vectors: Tensor | None = None,
) -> list[nn.Module]:
    """Return an embedding block and `blocks` encoder blocks; no positions, as published."""
    encoders = [EncoderBlock(width, heads, ffn, dropout) for _ in range(blocks)]
    return [TokenEmbedding(vocabulary, width, dropout, vectors), *encoders]
