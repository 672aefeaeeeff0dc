r"""What ranks say to each other: trained feedback weights, momenta, and that they still agree.

rank 0    loop 1 .......  loop 4 ...            one broadcast a loop, begun in the same order by
           \ B_1            \ B_4               all ranks, and finished before the targets
rank 1    loop 2 .... loop 3 ..... loop 5
               \ B_2        \ B_3       \ B_5
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from alkit.engine.heartbeat import waiting
from alkit.engine.messages import broadcast, fingerprint

__all__ = ["Group", "RanksDiffer"]


class RanksDiffer(RuntimeError):
    """Two ranks have different weights or batches."""


class Group:
    """This rank among all; one process alone is rank 0 of 1."""

    def __init__(self) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if joined else 0
        self.ranks = dist.get_world_size() if joined else 1
        self._begun: list[Any] = []

    def broadcast(self, payload: Any, source: int = 0) -> Any:
        """Return what rank `source` gives; every rank calls it."""
        if self.ranks == 1:
            return payload
        with waiting(f"word from rank {source}"):
            return broadcast(payload, source)

    def gather(self, payload: Any) -> list[Any]:
        """Return what every rank gives, by rank."""
        return [self.broadcast(payload, rank) for rank in range(self.ranks)]

    def begin_broadcast(self, parameters: Sequence[nn.Parameter], owner: int) -> None:
        """Begin to hand a loop's weights from its owner to all; every rank calls it."""
        if self.ranks > 1:
            self._begun += [dist.broadcast(p.detach(), owner, async_op=True) for p in parameters]

    def finish_broadcasts(self) -> None:
        """Wait until all that was begun has come."""
        with waiting("feedback weights of the other ranks"):
            for work in self._begun:
                work.wait()
        self._begun = []

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        if self.ranks > 1:
            with waiting("the sum over all ranks"):
                dist.all_reduce(tensor)
        return tensor

    def wait_for_all(self) -> None:
        """Go on when all ranks are here."""
        if self.ranks > 1:
            dist.barrier()

    def check_equal(self, net: nn.Module, seen: Tensor, step: int) -> None:
        """Compare all ranks' weights, and the labels they have seen.

        Raises:
            RanksDiffer: names what differs.
        """
        if self.ranks == 1:
            return
        state = net.state_dict()
        own = torch.tensor([*map(fingerprint, state.values()), fingerprint(seen)])
        differ = self.sum((own != self.broadcast(own)).long())
        if differ.any():
            at = int(differ.nonzero()[0])
            what = [*state, "the batches"][at]
            raise RanksDiffer(
                f"after step {step} {int(differ[at])} of {self.ranks} ranks differ from rank 0 in"
                f" {what}: give all ranks the same network, data, seed and number of threads"
            )
