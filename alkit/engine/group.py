r"""What ranks say to each other beside the schedule: one object for all methods.

    broadcast, gather        a payload of one rank for all, or of each for all
    total, Subgroup.mean     sums over all ranks, or over some of them
    check_equal              fingerprints: do all still agree?

A process alone is rank 0 of 1, and nothing is sent.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from alkit.engine.messages import broadcast, fingerprint


class RanksDiffer(RuntimeError):
    """Two ranks have different weights or batches."""


class Subgroup:
    """A few of the ranks, this one among them."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the mean over these ranks; `tensor` is overwritten."""
        dist.all_reduce(tensor, group=self.handle)
        return tensor.div_(self.handle.size())

    def total(self, value: float) -> float:
        """Return the sum of a number over these ranks, in double precision."""
        found = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(found, group=self.handle)
        return float(found)


class Group:
    """This rank among all.

    The executor "ranks" needs a group that this process has joined, and with another one it is
    alone; by default it takes part if there is a group.
    """

    def __init__(self, executor: str | None = None) -> None:
        joined = executor in (None, "ranks") and dist.is_available() and dist.is_initialized()
        if executor == "ranks" and not joined:
            raise RuntimeError(
                'executor="ranks" runs inside alkit.launch(function, ranks=2), or under torchrun'
                " inside alkit.torchrun_group()"
            )
        self.rank = dist.get_rank() if joined else 0
        self.ranks = dist.get_world_size() if joined else 1
        self.made: list[Any] = []

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files and shows progress."""
        return self.rank == 0

    def broadcast(self, payload: Any, source: int = 0) -> Any:
        """Return on every rank what rank `source` gives; the others' payload is not looked at."""
        return payload if self.ranks == 1 else broadcast(payload, source)

    def from_first(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return on every rank what a function gives on the first one, which alone calls it."""
        return self.broadcast(function(*arguments) if self.is_first else None)

    def gather(self, payload: Any) -> list[Any]:
        """Return what every rank gives, by rank."""
        return [self.broadcast(payload, rank) for rank in range(self.ranks)]

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over all ranks; `tensor` stays as it is."""
        found = tensor.clone()
        if self.ranks > 1:
            dist.all_reduce(found)
        return found

    def some(self, lists: Iterable[Sequence[int]]) -> Subgroup | None:
        """Make groups on every rank and return this rank's; None if it is in none of several."""
        several = [[*ranks] for ranks in lists if len(ranks) > 1]
        own, made = dist.new_subgroups_by_enumeration(several) if several else (None, [])
        self.made += made
        return None if own is None else Subgroup(own)

    def check_equal(self, parts: Mapping[str, Any], *, when: str = "", advice: str) -> None:
        """Compare trees of tensors, by names for people, between all ranks.

        `when` and `advice` begin and end the message.
        """
        if self.ranks == 1:
            return
        own = torch.tensor([fingerprint(part) for part in parts.values()])
        differ = self.total((own != self.broadcast(own)).long())
        if differ.any():
            at = int(differ.nonzero()[0])
            raise RanksDiffer(
                f"{when}{int(differ[at])} of {self.ranks} ranks differ from rank 0 in"
                f" {[*parts][at]}: {advice}"
            )

    def close(self) -> None:
        """Give groups of some ranks back."""
        for handle in self.made:
            dist.destroy_process_group(handle)
        self.made = []
