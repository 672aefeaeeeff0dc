"""Leave the network early: scores of every exit, what each exit costs, and when to stop.

Every AL layer is an exit: up through f[1] .. f[k], across b[k], down through h[k] .. h[1]. A sample
stops at the first exit whose prediction is sure enough; the others climb on, and what was computed
below is not computed again.

N samples, L exits, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from alkit.al.model import ALModel
from alkit.data.parts import Part
from alkit.engine.device import place
from alkit.engine.modes import evaluating


@dataclass(frozen=True)
class Leaving:
    """Where samples left, and what came of it.

    Attributes:
        depth: int64 (N,), the exit that each sample took, from 1.
        correct: float (N,), 0 or 1.
        cost: mean cost of a sample, in the unit of the costs that were given.
    """

    depth: Tensor
    correct: Tensor
    cost: float

    @property
    def accuracy(self) -> float:
        """Share of the samples that are right."""
        return self.correct.mean().item()

    def counts(self, exits: int) -> list[int]:
        """Return how many samples left at each exit."""
        return torch.bincount(self.depth - 1, minlength=exits).tolist()


@torch.no_grad()
def scores(model: ALModel, part: Part, batch_size: int = 512) -> Tensor:
    """Return the class scores of every exit, float (L, N, C), in the part's order.

    Every block runs once a batch; the bridges and decoders of all exits read its output.
    """
    batches = []
    with evaluating(model):
        for x, _ in part.batches(batch_size, shuffle=False):
            found = []
            for index, layer in enumerate(model):
                x = layer.enc.f(place(x, layer))
                found.append(_out(model, index, x).cpu())
            batches.append(torch.stack(found))
    return torch.cat(batches, dim=1)


def _out(model: ALModel, index: int, code: Any) -> Any:
    """Leave by the exit of a layer."""
    code = model[index].enc.b(code)
    for layer in reversed([*model][: index + 1]):
        code = layer.ae.h(place(code, layer))
    return code


def entropies(scores_LNC: Tensor, temperatures: Sequence[float] | None = None) -> Tensor:
    """Return how unsure each exit is of each sample: entropy over log C, 0 to 1, float (L, N).

    Args:
        temperatures: one an exit, by which scores are divided; 1 by default.
    """
    scale = torch.ones(len(scores_LNC)) if temperatures is None else torch.tensor(temperatures)
    log_p = (scores_LNC / scale[:, None, None]).log_softmax(2)
    return -(log_p.exp() * log_p).sum(2) / torch.log(torch.tensor(float(scores_LNC.shape[2])))


def leave(
    scores_LNC: Tensor,
    labels_N: Tensor,
    costs_L: Sequence[float],
    threshold: float,
    temperatures: Sequence[float] | None = None,
) -> Leaving:
    """Let every sample leave at the first exit with an entropy below `threshold`, or at the last.

    Args:
        threshold: share of the largest entropy, 0 to 1; 0 sends all to the last exit.
        costs_L: of leaving at each exit, as `costs` gives them.
    """
    sure_LN = entropies(scores_LNC, temperatures) < threshold
    sure_LN[-1] = True
    at_N = sure_LN.to(torch.uint8).argmax(0)  # the first exit that is sure
    guess_N = scores_LNC.argmax(2).gather(0, at_N[None])[0]
    correct_N = (guess_N == labels_N).float()
    cost = torch.tensor(costs_L, dtype=torch.float64)[at_N].mean().item()
    return Leaving(at_N + 1, correct_N, cost)


def sweep(
    scores_LNC: Tensor,
    labels_N: Tensor,
    costs_L: Sequence[float],
    thresholds: Sequence[float],
    temperatures: Sequence[float] | None = None,
) -> pd.DataFrame:
    """Return a row a threshold: threshold, accuracy, cost, and exit_1, ... the samples leaving."""
    rows = []
    for threshold in thresholds:
        left = leave(scores_LNC, labels_N, costs_L, threshold, temperatures)
        counts = {f"exit_{k}": n for k, n in enumerate(left.counts(len(scores_LNC)), 1)}
        rows.append(
            {"threshold": threshold, "accuracy": left.accuracy, "cost": left.cost, **counts}
        )
    return pd.DataFrame(rows)


def calibrated(scores_LNC: Tensor, labels_N: Tensor) -> list[float]:
    """Return the temperature of each exit with the least cross-entropy, from a grid of 1/100 to 10.

    Fit it on validation. It changes no prediction, only how sure an exit says it is.
    """
    grid = torch.logspace(-2, 1, 121).tolist()
    best = []
    for scores_NC in scores_LNC:
        losses = [F.cross_entropy(scores_NC / t, labels_N).item() for t in grid]
        best.append(grid[losses.index(min(losses))])
    return best


@torch.no_grad()
def costs(model: ALModel, x: Any) -> list[float]:
    """Return what leaving at each exit costs; 1 is the network that has its last exit alone.

    A sample that climbs to exit k has asked every exit below: the bridges and decoders of all exits
    up to k count, so the last of these is above 1. Counted are the floating-point operations of
    matrix products, convolutions and attention, for a batch x; an LSTM's inner products are counted
    where the counter knows them.
    """
    total, found, blocks, own = 0.0, [], 0.0, 0.0
    with evaluating(model):
        for index, layer in enumerate(model):
            with FlopCounterMode(display=False) as block:
                x = layer.enc.f(place(x, layer))
            with FlopCounterMode(display=False) as way_out:
                _out(model, index, x)
            own = way_out.get_total_flops()
            blocks += block.get_total_flops()
            total += block.get_total_flops() + own
            found.append(total)
    return [cost / (blocks + own) for cost in found]
