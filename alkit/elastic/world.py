"""Who takes part: one process, or all ranks of a group, in pipelines side by side.

    rank      0      1      2      3          2 stages x 2 replicas
    replica   0      0      1      1          a row: the stages of a replica
    stage     0      1      0      1          a column: the replicas of a stage

Two kinds of groups: the one of all ranks, for decisions, which lives as long as the job; and rows
and columns, for gradients, which are made anew whenever the layout changes.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from alkit.elastic.plan import Plan
from alkit.engine.heartbeat import waiting
from alkit.engine.messages import broadcast

__all__ = ["Alone", "Group"]


class Alone:
    """One process, which runs all stages and replicas."""

    rank, ranks = 0, 1
    replica, stage = 0, 0
    reduce: Callable[[Tensor], Tensor] | None = None
    add_up: Callable[[float], float] | None = None

    def regroup(self, plan: Plan) -> None:
        """Do what a new layout asks for: nothing."""

    def told(self, payload: Any, source: int = 0) -> Any:
        """Return what rank `source` says."""
        return payload

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        return tensor

    def close(self) -> None:
        """Give groups back."""


class Group(Alone):
    """This rank among all."""

    def __init__(self) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                'executor="ranks" runs inside alkit.launch(function, ranks=2), or under torchrun'
                " inside alkit.engine.launch.torchrun_group()"
            )
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.groups: list[Any] = []
        self.layout: tuple[int, int] | None = None

    def regroup(self, plan: Plan) -> None:
        """Leave the rows and columns, and make those of a new layout; all ranks call it."""
        if self.layout == (plan.stages, plan.replicas):
            return
        self.close()
        self.layout = plan.stages, plan.replicas
        self.replica, self.stage = divmod(self.rank, plan.stages)
        rows = [[r * plan.stages + s for s in range(plan.stages)] for r in range(plan.replicas)]
        columns = [[r * plan.stages + s for r in range(plan.replicas)] for s in range(plan.stages)]
        # every rank makes every group, in one order
        with waiting("all ranks to regroup"):
            own_row = self._made(rows)
            own_column = self._made(columns)
        self.add_up = None if own_row is None else self._adder(own_row)
        self.reduce = None if own_column is None else self._mean(own_column, plan.replicas)

    def told(self, payload: Any, source: int = 0) -> Any:
        """Return what rank `source` says."""
        with waiting(f"word from rank {source}"):
            return broadcast(payload, source)

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        found = tensor.clone()
        with waiting("the sum over all ranks"):
            dist.all_reduce(found)
        return found

    def close(self) -> None:
        """Give rows and columns back."""
        for group in self.groups:
            dist.destroy_process_group(group)
        self.groups, self.layout = [], None

    def _made(self, lists: list[list[int]]) -> Any:
        """Make the groups of more than one rank; return this rank's, or None."""
        own = None
        for ranks in lists:
            if len(ranks) > 1:
                group = dist.new_group(ranks)
                if self.rank in ranks:
                    own = group
                    self.groups.append(group)
        return own

    def _adder(self, group: Any) -> Callable[[float], float]:
        def add_up(value: float) -> float:
            found = torch.tensor(value, dtype=torch.float64)
            with waiting("the norm of all stages"):
                dist.all_reduce(found, group=group)
            return float(found)

        return add_up

    def _mean(self, group: Any, replicas: int) -> Callable[[Tensor], Tensor]:
        def mean(tensor: Tensor) -> Tensor:
            with waiting("the gradients of all replicas"):
                dist.all_reduce(tensor, group=group)
            return tensor / replicas

        return mean
