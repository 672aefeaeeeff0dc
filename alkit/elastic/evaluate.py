"""Every sample exactly once, shared out among the ranks."""

import torch
from torch import Tensor

from alkit.elastic.examples import Examples
from alkit.elastic.network import Network
from alkit.elastic.world import Alone
from alkit.heartbeat import beat

__all__ = ["correct"]


@torch.no_grad()
def correct(
    network: Network, data: Examples, world: Alone | None = None, batch: int = 256
) -> Tensor:
    """Return which samples are right, float (N,), the same on all ranks; the mode is restored.

    A class is right if its score is the highest; an answer, if its first and its last token are.
    """
    world = world or Alone()
    found = torch.zeros(len(data))
    before = network.training
    network.eval()
    try:
        for rows in torch.arange(world.rank, len(data), world.ranks).split(batch):
            beat("evaluation")
            chosen = network(data.inputs(rows)).argmax(1)
            right = chosen == data.y[rows]
            found[rows] = (right if right.dim() == 1 else right.all(1)).float()
    finally:
        network.train(before)
    return world.total(found)
