"""What ranks say to each other beside the schedule."""

from collections.abc import Sequence

import torch.distributed as dist

from alkit.engine.messages import broadcast

__all__ = ["agreed", "check_group", "first_rank"]


def check_group(workers: int | None) -> int:
    """Return the number of ranks.

    Raises:
        RuntimeError: this process belongs to no group.
        ValueError: `workers` is another number.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            'executor="ranks" runs inside alkit.launch(function, ranks=2), or under torchrun after'
            ' torch.distributed.init_process_group("gloo")'
        )
    ranks = dist.get_world_size()
    if workers not in (None, ranks):
        raise ValueError(f"workers is {workers} and there are {ranks} ranks: a worker is a rank")
    return ranks


def first_rank() -> bool:
    """Say whether this is rank 0, or no rank at all."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def agreed(cuts: Sequence[int]) -> list[int]:
    """Return rank 0's cuts: every rank has measured its own."""
    return broadcast(list(cuts), 0)
