"""Which rank holds which units, and how units go from rank to rank.

    2 stages x 1 replica     rank 0: units 0 .. 13        rank 1: units 14 .. 26
    6 layers freeze, 1 x 2   rank 0: all                  rank 1: all

Between two changes of the layout a rank holds the weights and moments of its own stage, and where
frozen layers run in front of the pipeline, every first stage holds them. Of other units it keeps
their shapes alone: one number that is none stands for all of a tensor, so whoever used it would
be told. What moves goes unit by unit: no rank ever holds what it is not to keep, but for one unit.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from alkit.elastic.layout import Layout
from alkit.elastic.network import Network
from alkit.elastic.optim import Optimizer
from alkit.elastic.world import World
from alkit.engine.group import RanksDiffer
from alkit.engine.messages import fingerprint


def held(network: Network, layout: Layout | None, rank: int) -> set[int]:
    """Return the numbers of the units that a rank holds; before the first layout all of them."""
    if layout is None:
        return set(range(len(network.units)))
    replica, stage = divmod(rank, layout.stages)
    if replica >= layout.replicas:
        return set()
    own = set(range(*layout.bounds[stage]))
    return own if stage else own | set(range(layout.start))


def keep(network: Network, optimizer: Optimizer, own: Collection[int]) -> None:
    """Let go of the weights and moments of all units but these, and but for what these share."""
    shared = {id(t) for number in own for t in tensors_of(network.units[number])}
    for number, unit in enumerate(network.units):
        if number in own:
            continue
        optimizer.forget(number, but=shared)
        for tensor in tensors_of(unit):
            if id(tensor) not in shared and tensor.numel() > 1:
                tensor.data = _nothing(tensor).expand(tensor.shape)


def move(
    network: Network, optimizer: Optimizer, before: Layout | None, after: Layout, world: World
) -> None:
    """Give every rank the units that it holds from now on, and let go of the others.

    Weights and moments come from the first rank that holds a unit, bit for bit.
    """
    for number, holders in _holders(network, before, world):
        wanted = [rank for rank in range(world.ranks) if number in held(network, after, rank)]
        if _travels(network, number, holders, wanted):
            _send(network, optimizer, number, holders[0], world, take=world.rank in wanted)
        if world.rank not in wanted:
            keep(network, optimizer, set(range(len(network.units))) - {number})
    keep(network, optimizer, held(network, after, world.rank))


def gather(network: Network, layout: Layout, world: World) -> None:
    """Make the network whole on every rank: its weights, but no moments."""
    everyone = range(world.ranks)
    for number, holders in _holders(network, layout, world):
        if _travels(network, number, holders, everyone):
            _send(network, None, number, holders[0], world, take=True)


def collect(
    network: Network, optimizer: Optimizer, layout: Layout | None, world: World
) -> dict[str, Any]:
    """Return the moments of all units by their numbers, on the first rank, or where all are."""
    found = {}
    for number, holders in _holders(network, layout, world):
        state = optimizer.state(number)
        if layout is not None:
            state = world.broadcast(state, holders[0])
        if layout is None or world.is_first:
            found[str(number)] = state
    return found


def check_equal(network: Network, own: Collection[int], world: World) -> None:
    """Compare the weights of all ranks that hold a unit.

    Args:
        own: units that this rank holds.
    Raises:
        RanksDiffer: names the first unit that differs.
    """
    if world.ranks == 1:
        return
    prints = {str(n): fingerprint(tensors_of(network.units[n])) for n in own}
    every = world.gather(prints)
    for number in range(len(network.units)):
        found = {rank: each[str(number)] for rank, each in enumerate(every) if str(number) in each}
        first = min(found)
        if differ := sum(one != found[first] for one in found.values()):
            raise RanksDiffer(
                f"{differ} of {len(found)} ranks differ from rank {first} in"
                f" {network.name_of(number)}: give all ranks the same network and data"
            )


def is_dropped(tensor: Tensor) -> bool:
    """Whether a rank keeps the shape of a tensor alone."""
    return tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size()


def _holders(
    network: Network, layout: Layout | None, world: World
) -> Iterator[tuple[int, Sequence[int]]]:
    every = [held(network, layout, rank) for rank in range(world.ranks)]
    for number in range(len(network.units)):
        yield number, [rank for rank, own in enumerate(every) if number in own]


def _travels(
    network: Network, number: int, holders: Sequence[int], wanted: Collection[int]
) -> bool:
    """Whether somebody lacks a unit; running statistics differ even where all have it."""
    statistics = next(network.units[number].buffers(), None) is not None
    return bool(set(wanted) - set(holders)) or (statistics and len(wanted) > 1)


def _send(
    network: Network,
    optimizer: Optimizer | None,
    number: int,
    owner: int,
    world: World,
    *,
    take: bool,
) -> None:
    mine = world.rank == owner
    state = world.broadcast(_trained(network, optimizer, number) if mine else None, owner)
    if mine or not take:
        return
    unit = network.units[number]
    for name, tensor in _named(unit):
        if is_dropped(tensor):  # as it lies in memory there
            tensor.data = torch.empty_like(state["weights"][name], device=tensor.device)
    unit.load_state_dict(state["weights"])
    if optimizer is not None:
        optimizer.restore(number, state["optimizer"])


def _trained(network: Network, optimizer: Optimizer | None, number: int) -> dict[str, Any]:
    weights = dict(network.units[number].state_dict())
    return {"weights": weights, "optimizer": {} if optimizer is None else optimizer.state(number)}


def _named(unit: nn.Module) -> list[tuple[str, Tensor]]:
    state = unit.state_dict(keep_vars=True)
    return [(name, value) for name, value in state.items() if isinstance(value, Tensor)]


def tensors_of(unit: nn.Module) -> list[Tensor]:
    """Return a unit's parameters and lasting buffers, not copies of them."""
    return [tensor for _, tensor in _named(unit)]


def _nothing(tensor: Tensor) -> Tensor:
    empty = float("nan") if tensor.is_floating_point() else 0
    return torch.full((), empty, dtype=tensor.dtype, device=tensor.device)
