"""The LSTM of the pipelined-AL experiments. Every block takes and returns (x_BTD, mask_BT, states).

B batch, T tokens, D width, H hidden width of one direction, V vocabulary. The mask is true at real
tokens; states are the (h, c) of the block below, each (2, B, H), with which a block starts.
"""

import torch
from torch import Tensor, nn

from alkit.models.transformer import TokenEmbedding

States = tuple[Tensor, Tensor]
Sequence = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, States]
HOLD = 1e4  # sigmoid(HOLD) is 1 and sigmoid(-HOLD) is 0, exactly
STRETCHES = 4  # of time, each run with the texts that reach into it; 8 gain no more on a CPU


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
        self.hold: Tensor
        self.register_buffer("hold", gates.repeat_interleave(hidden)[:, None], persistent=False)

    def forward(self, inputs: Sequence) -> tuple[Tensor, Tensor, States]:
        """(B, T, D) -> (B, T, 2 H), and the final states."""
        x_BTD, mask_BT, *below = inputs
        if not self.packed:
            y_BTD, states = self.lstm(x_BTD, below[0] if below else None)
            return y_BTD, mask_BT, states
        lengths_B = mask_BT.sum(1)
        order_B = lengths_B.argsort(descending=True, stable=True)
        x_BTD, mask_sorted_BT, lengths_B = x_BTD[order_B], mask_BT[order_B], lengths_B[order_B]
        below = [(h_2BH[:, order_B], c_2BH[:, order_B]) for h_2BH, c_2BH in below]
        turned_BT = _turned(mask_sorted_BT, lengths_B)
        ways = [
            self._way(x, mask_sorted_BT, below, way)
            for way, x in enumerate((x_BTD, _rows(x_BTD, turned_BT)))
        ]
        (ahead_BTH, *states), (back_BTH, *back_states) = ways
        y_BTD = torch.cat([ahead_BTH, _rows(back_BTH, turned_BT)], dim=2)
        h_2BH, c_2BH = (torch.stack(pair) for pair in zip(states, back_states, strict=True))
        place_B = order_B.argsort()
        return y_BTD[place_B], mask_BT, (h_2BH[:, place_B], c_2BH[:, place_B])

    def _way(
        self, x_BTD: Tensor, mask_BT: Tensor, below: list[States], way: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run one direction, longest text first: outputs (B, T, H), h and c (B, H) at each end.

            texts  |########|#####|##|#|     a stretch of time runs the texts that reach into it;
                   |########|###..|  | |     `.` is padding inside a stretch: the input gate is shut
                   |######..|     |  | |     and the forget gate open, so the cell stays what it was
                   |####....|     |  | |     at the text's end

        Equal to pack_padded_sequence, which takes its steps one by one.
        """
        w_ih, w_hh, b_ih, b_hh = self.lstm.all_weights[way]
        weights = [torch.cat([w_ih, self.hold], dim=1), w_hh, b_ih, b_hh]
        x_BTD = torch.cat([x_BTD, (~mask_BT).unsqueeze(2).to(x_BTD)], dim=2)
        batch, tokens, hidden = *x_BTD.shape[:2], self.lstm.hidden_size
        empty = x_BTD.new_zeros(batch, hidden)
        h_BH, c_BH = (below[0][0][way], below[0][1][way]) if below else (empty, empty)
        stretches, at = [], 0
        # to read lengths off an accelerator is to wait for it: there one stretch takes them all
        here = mask_BT.device.type == "cpu"
        lengths = mask_BT.sum(1).tolist() if here else [tokens] * batch
        for end in _cuts(lengths, STRETCHES):
            alive = sum(length > at for length in lengths)
            start = h_BH[:alive].unsqueeze(0), c_BH[:alive].unsqueeze(0)
            y, h, c = torch.lstm(
                x_BTD[:alive, at:end], start, weights, True, 1, 0.0, self.training, False, True
            )
            stretches.append(nn.functional.pad(y, (0, 0, 0, 0, 0, batch - alive)))
            h_BH, c_BH = torch.cat([h[0], h_BH[alive:]]), torch.cat([c[0], c_BH[alive:]])
            at = end
        y_BTH = nn.functional.pad(torch.cat(stretches, dim=1), (0, 0, 0, tokens - at))
        last_B11 = (mask_BT.sum(1) - 1)[:, None, None]
        h_BH = y_BTH.take_along_dim(last_B11, dim=1)[:, 0]
        return y_BTH * mask_BT.unsqueeze(2), h_BH, c_BH


def _cuts(lengths: list[int], stretches: int) -> list[int]:
    """Return where the stretches of time end, for falling lengths: as many texts end in each."""
    ranks = [len(lengths) * part // stretches for part in range(stretches)]
    return sorted({lengths[rank] for rank in ranks})


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
        packed: see `BiLSTM`; off, padding has a vector that is trained, as published.
        vectors: float (V, width) for the embedding to start from.
    """
    widths = [width, *[2 * hidden] * (blocks - 1)]
    stack = [BiLSTM(w, hidden, packed=packed) for w in widths]
    pad = 0 if packed else None
    return [TokenEmbedding(vocabulary, width, dropout, pad, vectors=vectors), *stack]


def final_states(s: tuple[Tensor, Tensor, States]) -> Tensor:
    """Pool for AL's bridge: the sum of both directions' final states, (B, H)."""
    _, _, (h_2BH, _) = s
    return h_2BH.sum(0)


def last_step(s: Sequence) -> Tensor:
    """Pool for the published BP head: the output at the last position, padded or not, (B, 2 H)."""
    return s[0][:, -1]
