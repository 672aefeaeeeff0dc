"""The LSTM of the pipelined-AL experiments. Every block takes and returns (x_BTD, mask_BT, states).

B batch, T tokens, D width, H hidden width of one direction, V vocabulary. The mask is true at real
tokens; states are the (h, c) of the block below, each (2, B, H), with which a block starts.
"""

import torch
from torch import Tensor, nn

from alkit.models.transformer import TokenEmbedding

__all__ = ["BiLSTM", "final_states", "last_step", "lstm_al"]

States = tuple[Tensor, Tensor]
Sequence = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, States]
HOLD = 1e4  # sigmoid(HOLD) is 1 and sigmoid(-HOLD) is 0, exactly


class BiLSTM(nn.Module):
    """One bidirectional layer, started from the states of the layer below, if there are any.

    Args:
        packed: stop at each text's own end; off runs over the padding, as published.
    """

    def __init__(self, width: int, hidden: int, *, packed: bool = True) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
        self.packed = packed
        gates = torch.tensor([-HOLD, HOLD, 0.0, 0.0])  # input, forget, cell, output
        self.register_buffer("hold", gates.repeat_interleave(hidden)[:, None], persistent=False)

    def forward(self, inputs: Sequence) -> tuple[Tensor, Tensor, States]:
        """(B, T, D) -> (B, T, 2 H), and the final states."""
        x_BTD, mask_BT, *below = inputs
        if not self.packed:
            y_BTD, states = self.lstm(x_BTD, below[0] if below else None)
            return y_BTD, mask_BT, states
        # Equal to pack_padded_sequence, which takes more than twice the time on a CPU: padding
        # comes last in both directions, and a padded step shuts the input gate and opens the
        # forget gate, so that the cell stays what it was at the text's end.
        lengths_B = mask_BT.sum(1)
        x_BTD = torch.cat([x_BTD, (~mask_BT).unsqueeze(2).to(x_BTD)], dim=2)
        turned_BT = _turned(mask_BT, lengths_B)
        back_BTD = _rows(x_BTD, turned_BT)
        ways = [self._way(x, below, way, lengths_B) for way, x in enumerate((x_BTD, back_BTD))]
        (ahead_BTH, *states), (back_BTH, *back_states) = ways
        y_BTD = torch.cat([ahead_BTH, _rows(back_BTH, turned_BT)], dim=2)
        h_2BH, c_2BH = (torch.stack(pair) for pair in zip(states, back_states, strict=True))
        return y_BTD * mask_BT.unsqueeze(2), mask_BT, (h_2BH, c_2BH)

    def _way(
        self, x_BTD: Tensor, below: list[States], way: int, lengths_B: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run one direction: outputs (B, T, H), and h and c (B, H) at the end of each text."""
        w_ih, w_hh, b_ih, b_hh = self.lstm._flat_weights[4 * way : 4 * way + 4]
        weights = [torch.cat([w_ih, self.hold], dim=1), w_hh, b_ih, b_hh]
        if below:
            start = tuple(state[way : way + 1].contiguous() for state in below[0])
        else:
            start = (x_BTD.new_zeros(1, len(x_BTD), self.lstm.hidden_size),) * 2
        y_BTH, _, c_1BH = torch.lstm(
            x_BTD, start, weights, True, 1, 0.0, self.training, False, True
        )
        last_B11 = (lengths_B - 1)[:, None, None]
        return y_BTH, y_BTH.take_along_dim(last_B11, dim=1)[:, 0], c_1BH[0]


def _turned(mask_BT: Tensor, lengths_B: Tensor) -> Tensor:
    """Return each position's place when every text is read from its own end; padding stays."""
    places_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    return torch.where(mask_BT, lengths_B[:, None] - 1 - places_T, places_T)


def _rows(x_BTD: Tensor, places_BT: Tensor) -> Tensor:
    return x_BTD.take_along_dim(places_BT.unsqueeze(2), dim=1)


def lstm_al(
    vocabulary: int,
    *,
    blocks: int = 3,
    width: int = 300,
    hidden: int = 256,
    dropout: float = 0.0,
    packed: bool = True,
    vectors: Tensor | None = None,
) -> list[nn.Module]:
    """Return the embedding block and `blocks` BiLSTMs.

    Args:
        dropout: of the embedding's output; the published network has none.
        packed: see `BiLSTM`.
        vectors: float (V, width) for the embedding to start from.
    """
    widths = [width, *[2 * hidden] * (blocks - 1)]
    stack = [BiLSTM(w, hidden, packed=packed) for w in widths]
    return [TokenEmbedding(vocabulary, width, dropout, vectors=vectors), *stack]


def final_states(s: Sequence) -> Tensor:
    """Pool for AL's bridge: the sum of both directions' final states, (B, H)."""
    _, _, (h_2BH, _) = s
    return h_2BH.sum(0)


def last_step(s: Sequence) -> Tensor:
    """Pool for the published BP head: the output at the last position, padded or not, (B, 2 H)."""
    return s[0][:, -1]
