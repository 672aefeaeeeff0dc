"""Every rank gets what the others have trained, and makes sure of it."""

from typing import Any

import torch

from alkit.elastic.network import Network
from alkit.elastic.optim import Optimizer
from alkit.elastic.plan import Plan
from alkit.elastic.world import Alone
from alkit.engine.messages import fingerprint

__all__ = ["RanksDiffer", "check_equal", "share"]


class RanksDiffer(RuntimeError):
    """Two ranks have different weights."""


def share(network: Network, optimizer: Optimizer, plan: Plan, world: Alone) -> None:
    """Give every rank the weights and moments of the first replica's stages, bit for bit.

    Without a pipeline and without spare ranks, all have them but for running statistics.
    """
    if world.ranks == 1:
        return
    first, alike = network.first(), plan.stages == 1 and plan.ranks == world.ranks
    for stage, (low, high) in enumerate(plan.bounds):
        numbers = range(max(low, first), max(high, first))
        if alike:
            numbers = [n for n in numbers if next(network.units[n].buffers(), None) is not None]
        mine = world.rank == stage
        trained = world.told(
            {str(n): _trained(network, optimizer, n) for n in numbers} if mine else None, stage
        )
        if not mine:
            for number in numbers:
                own = trained[str(number)]
                network.units[number].load_state_dict(own["weights"])
                optimizer.restore(number, own["optimizer"])


def check_equal(network: Network, world: Alone) -> None:
    """Compare all ranks' weights.

    Raises:
        RanksDiffer: names the first unit that differs.
    """
    if world.ranks == 1:
        return
    own = torch.tensor([fingerprint(unit.state_dict()) for unit in network.units])
    differ = world.total((own != world.told(own)).long())
    if differ.any():
        number = int(differ.nonzero()[0])
        raise RanksDiffer(
            f"{int(differ[number])} of {world.ranks} ranks have other weights of"
            f" {network.name_of(number)} than rank 0: give all ranks the same network and data"
        )


def _trained(network: Network, optimizer: Optimizer, number: int) -> dict[str, Any]:
    weights = dict(network.units[number].state_dict())
    return {"weights": weights, "optimizer": optimizer.state(number)}
