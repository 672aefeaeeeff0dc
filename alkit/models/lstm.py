"""The LSTM of the pipelined-AL experiments. Every block takes and returns (x_BTD, mask_BT, states).

B batch, T tokens, D width, H hidden width of one direction, V vocabulary. The mask is true at real
tokens; states are the (h, c) of the block below, each (2, B, H), with which a block starts.
"""

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from alkit.models.transformer import TokenEmbedding

__all__ = ["BiLSTM", "final_states", "last_step", "lstm_al"]

States = tuple[Tensor, Tensor]
Sequence = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, States]


class BiLSTM(nn.Module):
    """One bidirectional layer, started from the states of the layer below, if there are any.

    Args:
        packed: stop at each text's own end; off runs over the padding, as published.
    """

    def __init__(self, width: int, hidden: int, *, packed: bool = True) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
        self.packed = packed

    def forward(self, inputs: Sequence) -> tuple[Tensor, Tensor, States]:
        """(B, T, D) -> (B, T, 2 H), and the final states."""
        x_BTD, mask_BT, *below = inputs
        states = below[0] if below else None
        if not self.packed:
            y_BTD, states = self.lstm(x_BTD, states)
            return y_BTD, mask_BT, states
        lengths_B = mask_BT.sum(1).cpu()
        packed = pack_padded_sequence(x_BTD, lengths_B, batch_first=True, enforce_sorted=False)
        y, states = self.lstm(packed, states)
        y_BTD, _ = pad_packed_sequence(y, batch_first=True, total_length=x_BTD.shape[1])
        return y_BTD, mask_BT, states


def lstm_al(
    vocabulary: int,
    *,
    blocks: int = 3,
    width: int = 300,
    hidden: int = 256,
    packed: bool = True,
    vectors: Tensor | None = None,
) -> list[nn.Module]:
    """Return the embedding block, which may start from `vectors` (V, D), and `blocks` BiLSTMs."""
    widths = [width, *[2 * hidden] * (blocks - 1)]
    stack = [BiLSTM(w, hidden, packed=packed) for w in widths]
    return [TokenEmbedding(vocabulary, width, vectors=vectors), *stack]


def final_states(s: Sequence) -> Tensor:
    """Pool for AL's bridge: the sum of both directions' final states, (B, H)."""
    _, _, (h_2BH, _) = s
    return h_2BH.sum(0)


def last_step(s: Sequence) -> Tensor:
    """Pool for the published BP head: the output at the last position, padded or not, (B, 2 H)."""
    return s[0][:, -1]
