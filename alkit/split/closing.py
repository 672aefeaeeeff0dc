"""The end of a round: whose networks count, and what they become."""

import logging
from collections.abc import Callable, Mapping

from torch import Tensor

from alkit.split.average import State, agreed
from alkit.split.rounds import Contribution
from alkit.split.settings import Settings
from alkit.split.waiting import QuorumLost

log = logging.getLogger(__name__)


def averaged(
    number: int,
    before: State,
    made: Mapping[int, Contribution],
    runs: Callable[[dict[str, Tensor]], bool],
    settings: Settings,
) -> tuple[dict[str, Tensor], dict[int, str]]:
    """Return the average of a round, and whose networks are not in it, and why.

    Args:
        before: what the round began with.
        runs: whether a network with a state gives finite scores.
    Raises:
        QuorumLost: nobody's is of use; the last good state is in the checkpoint.
    """
    state, blamed = agreed(
        before,
        {at: each.state for at, each in made.items()},
        {at: each.samples for at, each in made.items()},
        runs,
        how=settings.aggregate,
        most=settings.norm_bound,
    )
    for at, why in blamed.items():
        log.warning("device %d is left out of the average of round %d: %s", at, number, why)
    if state is None:
        told = "".join(f"; device {at}: {why}" for at, why in blamed.items())
        raise QuorumLost(f"round {number}: nobody's weights are of use{told}")
    return state, blamed
