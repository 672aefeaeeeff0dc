"""Rules of freezing beside the package's three, as functions of what is known at a decision.

Sources: AutoFreeze (Liu et al. 2021), FreezeOut (Brock et al. 2017); `random` is the control.
"""

import numpy as np

from alkit.base.seeds import seed_for
from alkit.elastic.freeze import GUARD, Observation, Policy, most, policy


def random(alpha: float, seed: int) -> Policy:
    """Freeze a random number of layers, up to a share alpha of the active ones and the schedule."""

    def decide(seen: Observation) -> int:
        room = max(0, most(seen, alpha) - seen.frozen)
        return seen.frozen + seed_for(seed, "freeze", seen.evaluation) % (room + 1)

    return decide


def autofreeze(seen: Observation) -> int:
    """Freeze the layers below the first one whose gradient still changes as much as the others'.

    The change is |n(T - 1) - n(T)| / n(T - 1); "as much" is the median over active layers.
    """
    if len(seen.norms) < 2 or seen.frozen == seen.layers:
        return seen.frozen
    before, now = (np.asarray(row[seen.frozen :]) for row in seen.norms[-2:])
    learn = now >= 0
    if not np.isfinite([before, now]).all() or not before.all() or not learn.any():
        return seen.frozen
    change = abs(before - now) / before
    return seen.frozen + int(np.argmax(learn & (change >= np.median(change[learn]))))


def freezeout(seen: Observation) -> int:
    """Freeze layer i when a share t_i ** 3 of training is done, t_i from 0.8 to 1 in equal steps.

    FreezeOut's own learning rates a layer are not part of it.
    """
    times = np.linspace(0.8, 1, seen.layers) ** 3
    return int((times <= seen.progress + GUARD).sum())


def rule(name: str, alpha: float, seed: int = 0) -> Policy:
    """Return a rule by name, kept monotone: of this file, or of the package."""
    own = {"autofreeze": autofreeze, "freezeout": freezeout, "random": random(alpha, seed)}
    return policy(own.get(name, name), alpha)
