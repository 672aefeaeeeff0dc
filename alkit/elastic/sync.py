"""Every rank gets what the others have trained, and makes sure of it."""

from typing import Any

from alkit.elastic.network import Network
from alkit.elastic.optim import Optimizer
from alkit.elastic.plan import Plan
from alkit.elastic.world import World

__all__ = ["check_equal", "share"]


def share(network: Network, optimizer: Optimizer, plan: Plan, world: World) -> None:
    """Give every rank the weights and moments of the first replica's stages, bit for bit.

    Without a pipeline and without spare ranks, all have them but for running statistics.
    """
    first, alike = network.first(), plan.stages == 1 and plan.ranks == world.ranks

    def trained(stage: int) -> dict[str, Any]:
        low, high = plan.bounds[stage]
        numbers = range(max(low, first), max(high, first))
        return {str(n): _trained(network, optimizer, n) for n in numbers if not alike or moves(n)}

    def moves(number: int) -> bool:
        return next(network.units[number].buffers(), None) is not None

    def take(stage: int, states: dict[str, Any]) -> None:
        for number, own in states.items():
            network.units[int(number)].load_state_dict(own["weights"])
            optimizer.restore(int(number), own["optimizer"])

    world.share(range(plan.stages), trained, take)


def check_equal(network: Network, world: World) -> None:
    """Compare all ranks' weights.

    Raises:
        RanksDiffer: names the first unit that differs.
    """
    parts = {network.name_of(n): unit.state_dict() for n, unit in enumerate(network.units)}
    world.check_equal(parts, advice="give all ranks the same network and data")


def _trained(network: Network, optimizer: Optimizer, number: int) -> dict[str, Any]:
    weights = dict(network.units[number].state_dict())
    return {"weights": weights, "optimizer": optimizer.state(number)}
