"""Hold units and their moments on ranks, and move them from rank to rank.

    rank      0      1      2      3          2 stages x 2 replicas
    replica   0      0      1      1          a row: the stages of a replica
    stage     0      1      0      1          a column: the replicas of a stage

Between two changes of the layout a rank holds the weights and moments of its own stage, and where
frozen layers run in front of the pipeline, every first stage holds them. Of other units it keeps
only the shapes: one nan stands for all of a tensor, so using it would show. Units move one by one:
of units that are not its own, a rank never holds more than one.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from alkit.base import tree
from alkit.elastic.layout import Layout
from alkit.elastic.network import Network
from alkit.engine.checkpoint import check_moments
from alkit.engine.messages import Group


class World(Group):
    """This rank among all, and its place in the layout: its row and column change with that."""

    replica, stage = 0, 0
    row: Any = None  # group of the stages of this replica, if there are several
    column: Any = None  # of the replicas of this stage
    made: Sequence[Any] = ()

    def regroup(self, layout: Layout) -> None:
        """Leave the rows and columns, and make those of a new layout; all ranks call it."""
        if self.ranks == 1:
            return
        self.close()
        self.replica, self.stage = divmod(self.rank, layout.stages)
        rows = torch.arange(layout.stages * layout.replicas).view(-1, layout.stages)
        self.row, rows_made = _groups(rows.tolist())
        self.column, columns_made = _groups(rows.T.tolist())
        self.made = [*rows_made, *columns_made]

    def reduce(self, tensor: Tensor) -> Tensor:
        """Return the mean over the replicas of this stage; `tensor` is overwritten."""
        if self.column is not None:
            dist.all_reduce(tensor, group=self.column)
            tensor.div_(self.column.size())
        return tensor

    def add_up(self, value: float) -> float:
        """Return the sum over the stages of this replica, in double precision."""
        found = torch.tensor(value, dtype=torch.float64)
        if self.row is not None:
            dist.all_reduce(found, group=self.row)
        return float(found)

    def close(self) -> None:
        """Give the rows and columns back."""
        for handle in self.made:
            dist.destroy_process_group(handle)
        self.made = ()


def _groups(lists: list[list[int]]) -> tuple[Any, list[Any]]:
    """Make groups on every rank; return the group of this rank, if any, and all groups."""
    several = [ranks for ranks in lists if len(ranks) > 1]
    return dist.new_subgroups_by_enumeration(several) if several else (None, [])


class Units:
    """The units of a network and their moments, as this rank holds them."""

    def __init__(self, network: Network, optimizer: torch.optim.Optimizer, world: World) -> None:
        self.network, self.optimizer, self.world = network, optimizer, world
        self.layout: Layout | None = None  # before the first one every rank has all units
        self.whole = True  # does this rank have all weights; moments are of what it trains

    def own(self, layout: Layout | None, rank: int) -> set[int]:
        """Return the numbers of the units that a rank holds by a layout."""
        if layout is None or self.world.ranks == 1:
            return set(range(len(self.network.units)))
        replica, stage = divmod(rank, layout.stages)
        if replica >= layout.replicas:
            return set()
        found = set(range(*layout.bounds[stage]))
        return found if stage else found | set(range(layout.start))

    def freeze(self, frozen: int) -> None:
        """Train this many layers no more, and forget their moments."""
        self.network.freeze(frozen)
        for unit in self.network.units[: self.network.first()]:
            self._forget(unit)

    def move(self, layout: Layout) -> None:
        """Hold the units of a layout, from the first rank that has them; every rank calls it."""
        for number, holders in self._holders() if layout != self.layout else ():
            wanted = [r for r in range(self.world.ranks) if number in self.own(layout, r)]
            self._send(number, holders, wanted, moments=True)
            if self.world.rank not in wanted:
                self._keep(self.own(None, 0) - {number})
        if layout != self.layout:
            self.world.regroup(layout)
        self.layout, self.whole = layout, self.world.ranks == 1
        self._keep(self.own(layout, self.world.rank))

    def gather(self) -> None:
        """Give every rank all weights, but no moments, until a move; every rank calls it."""
        for number, holders in () if self.whole else self._holders():
            self._send(number, holders, range(self.world.ranks), moments=False)
        self.whole = True

    def state(self) -> dict[str, Any]:
        """Return the moments of all units by their numbers, on the first rank; and the groups."""
        moments = {}
        for number, holders in self._holders():
            own = self.world.broadcast(self._moments(number), holders[0])
            if self.world.rank == 0:
                moments[str(number)] = own
        groups = self.optimizer.param_groups
        own = [{name: each for name, each in group.items() if name != "params"} for group in groups]
        return {"moments": moments, "groups": own}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Take over a state that `state` returned."""
        for group, own in zip(self.optimizer.param_groups, saved["groups"], strict=True):
            group.update(own)
        for number, moments in saved["moments"].items():
            self._restore(int(number), moments)

    def _restore(self, number: int, moments: Mapping[str, Mapping[str, Any]]) -> None:
        named = dict(self.network.units[number].named_parameters())
        check_moments(self.optimizer, ((named[name], own) for name, own in moments.items()))
        for name, values in moments.items():
            self.optimizer.state[named[name]] = tree.to_device(dict(values), named[name].device)

    def _moments(self, number: int) -> dict[str, dict[str, Any]]:
        state, named = self.optimizer.state, self.network.units[number].named_parameters()
        return {name: dict(state[each]) for name, each in named if each in state}

    def _trained(self, number: int, *, moments: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        weights = dict(self.network.units[number].state_dict())
        return weights, self._moments(number) if moments else {}

    def _forget(self, unit: nn.Module, but: Collection[int] = ()) -> None:
        """Drop the moments of a unit, except for parameters with these ids."""
        for parameter in unit.parameters():
            if id(parameter) not in but:
                self.optimizer.state.pop(parameter, None)

    def _keep(self, own: Collection[int]) -> None:
        """Let go of weights and moments of all other units, except tensors shared with `own`."""
        shared = {id(t) for number in own for t in tensors_of(self.network.units[number])}
        for number, unit in enumerate(self.network.units):
            if number in own:
                continue
            self._forget(unit, shared)
            for tensor in tensors_of(unit):
                if id(tensor) not in shared and tensor.numel() > 1:
                    none = float("nan") if tensor.is_floating_point() else 0
                    tensor.data = tensor.new_full((), none).expand(tensor.shape)

    def _holders(self) -> Iterator[tuple[int, list[int]]]:
        every = [self.own(self.layout, rank) for rank in range(self.world.ranks)]
        for number in range(len(self.network.units)):
            yield number, [rank for rank, own in enumerate(every) if number in own]

    def _send(
        self, number: int, holders: list[int], wanted: Collection[int], *, moments: bool
    ) -> None:
        """Bring a unit to all ranks, if a rank that wants it has not got it."""
        unit, mine = self.network.units[number], self.world.rank == holders[0]
        # running statistics differ even where all have them
        statistics = next(unit.buffers(), None) is not None
        if not (statistics or set(wanted) - set(holders)):
            return
        trained = self._trained(number, moments=moments) if mine else None
        weights, state = self.world.broadcast(trained, holders[0])
        if mine:
            return
        for name, tensor in _named(unit):
            if is_dropped(tensor):  # as it lies in memory there
                tensor.data = torch.empty_like(weights[name], device=tensor.device)
        unit.load_state_dict(weights)
        self._restore(number, state)


def _named(unit: nn.Module) -> list[tuple[str, Tensor]]:
    state = unit.state_dict(keep_vars=True)
    return [(name, value) for name, value in state.items() if isinstance(value, Tensor)]


def tensors_of(unit: nn.Module) -> list[Tensor]:
    """Return the parameters and lasting buffers of a unit, not copies of them."""
    return [tensor for _, tensor in _named(unit)]


def is_dropped(tensor: Tensor) -> bool:
    """Whether a rank keeps only the shape of a tensor."""
    return tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size()
