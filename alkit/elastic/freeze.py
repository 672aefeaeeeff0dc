"""When to stop training a layer: rules that say how many layers, counted from below, are frozen.

    evaluation T   1    2    3    4    5         schedule with alpha = 1/3, 12 layers
    frozen         4    7    9   10   11         ceil(12 (1 - (2/3)^T))

A rule is a pure function of an `Observation`; it never thaws a layer. `Observation.norms` is what
the gradient rules look at: for every evaluation so far, one norm a layer over the steps since the
last one.

Sources: PipeTransformer (He et al. 2021), AutoFreeze (Liu et al. 2021), FreezeOut (Brock et al.
2017). The published PipeTransformer code runs `schedule` only; `gradnorm` is its paper's rule.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from alkit.data.seeds import seed_for

GUARD = 1e-9  # ceil(4.0000000001) is to be 4


@dataclass(frozen=True)
class Observation:
    """What a rule knows.

    Attributes:
        layers: of the network.
        frozen: of them, so far.
        evaluation: T, 1 at the first.
        norms: a row an evaluation, a gradient norm a layer; frozen layers have 0, and those of
            which nothing learns -1. The last row is of the steps since the last evaluation.
        progress: share of all steps that is done, 0 to 1.
    """

    layers: int
    frozen: int
    evaluation: int
    norms: tuple[tuple[float, ...], ...] = ()
    progress: float = 0.0


Policy = Callable[[Observation], int]


def cap(layers: int, alpha: float, evaluation: int) -> int:
    """Return the most layers that may be frozen: ceil(L (1 - (1 - alpha)^T)).

    The closed form of u(T) = u(T - 1) + alpha (L - u(T - 1)); rounding inside the recurrence would
    give another, faster sequence.
    """
    return math.ceil(layers * (1 - (1 - alpha) ** evaluation) - GUARD)


def none() -> Policy:
    """Freeze nothing: the baseline."""
    return lambda seen: 0


def schedule(alpha: float = 1 / 3) -> Policy:
    """Freeze by the clock, whatever the gradients: what the published runs did."""
    _check_alpha(alpha)
    return lambda seen: cap(seen.layers, alpha, seen.evaluation)


def gradnorm(alpha: float = 1 / 3) -> Policy:
    """Freeze up to the active layer with the smallest gradient norm, or to the cap if it is less.

    The paper's rule: L_f(T) = min(L_f(T-1) + alpha (L - L_f(T-1)), the calmest active layer).
    Layers are counted, so an argmin at the lowest active layer freezes it. Where the cap is the
    less at every evaluation, it is `schedule`.
    """
    _check_alpha(alpha)

    def decide(seen: Observation) -> int:
        most = _most(seen, alpha)
        active = _active(seen.norms[-1] if seen.norms else (), seen)
        if active is None:
            return seen.frozen
        return min(most, seen.frozen + int(np.argmin(np.where(active < 0, np.inf, active))) + 1)

    return decide


def autofreeze(
    percentile: float = 50.0, alpha: float | None = None, *, inclusive: bool = False
) -> Policy:
    """Freeze the layers below the first one whose gradient still changes as much as the others'.

    The change is |n(T - 1) - n(T)| / n(T - 1); "as much" is the percentile over active layers.

    Args:
        alpha: of the cap; None for none.
        inclusive: freeze that first layer, too, as the published code does.
    """
    if alpha is not None:
        _check_alpha(alpha)
    if not 0 <= percentile <= 100:
        raise ValueError(f"percentile is {percentile}: give 0 to 100")

    def decide(seen: Observation) -> int:
        if len(seen.norms) < 2:
            return seen.frozen
        before, now = (_active(row, seen) for row in seen.norms[-2:])
        if before is None or now is None or not before.all() or not (learn := now >= 0).any():
            return seen.frozen
        change = abs(before - now) / before
        still = learn & (change >= np.percentile(change[learn], percentile))
        first = int(np.argmax(still))
        found = seen.frozen + first + inclusive
        most = seen.layers if alpha is None else _most(seen, alpha)
        return min(found, most)

    return decide


def linear(step: int = 1) -> Policy:
    """Freeze `step` layers more at each evaluation."""
    if step < 0:
        raise ValueError(f"step is {step}: give 0 or more layers")
    return lambda seen: step * seen.evaluation


def table(counts: Sequence[int]) -> Policy:
    """Freeze counts[T - 1] layers at evaluation T, then what the last one says."""
    counts = list(counts)
    if not counts or any(low > high for low, high in zip(counts, counts[1:], strict=False)):
        raise ValueError(f"counts are {counts}: give at least one, none below the one before")
    return lambda seen: counts[min(seen.evaluation, len(counts)) - 1]


def random(alpha: float = 1 / 3, seed: int = 0) -> Policy:
    """Freeze a random number of layers up to the cap: the control for the gradient rules."""
    _check_alpha(alpha)

    def decide(seen: Observation) -> int:
        room = _most(seen, alpha) - seen.frozen
        if room <= 0:
            return seen.frozen
        return seen.frozen + seed_for(seed, "freeze", seen.evaluation) % (room + 1)

    return decide


def freezeout(start: float = 0.8, *, cubic: bool = True) -> Policy:
    """Freeze layer i when a share t_i of training is done, t_i from `start` to 1 in equal steps.

    Args:
        cubic: of t_i ** 3 instead. FreezeOut's own learning rates a layer are not part of it.
    """
    if not 0 < start <= 1:
        raise ValueError(f"start is {start}: give a share above 0 and up to 1")

    def decide(seen: Observation) -> int:
        times = np.linspace(start, 1, seen.layers) ** (3 if cubic else 1)
        return int((times <= seen.progress + GUARD).sum())

    return decide


RULES = (none, schedule, gradnorm, autofreeze, linear, table, random, freezeout)
POLICIES: dict[str, Callable[..., Policy]] = {rule.__name__: rule for rule in RULES}


def policy(name: str, *, most: int | None = None, **options: object) -> Policy:
    """Return a rule by name, kept monotone and within 0 to `most` layers.

    Args:
        most: of the layers; default all.
        options: of the rule: alpha, percentile, ...
    Raises:
        ValueError: an unknown name, or options out of range.
    """
    if name not in POLICIES:
        raise ValueError(f"freeze is {name!r}: give {', '.join(POLICIES)}")
    try:
        rule = POLICIES[name](**options)
    except TypeError as error:
        raise ValueError(f"freeze={name!r} does not take these options: {error}") from error

    return kept(rule, most)


def kept(rule: Policy, most: int | None = None) -> Policy:
    """Keep a rule monotone, and within 0 to `most` layers; default all."""

    def decide(seen: Observation) -> int:
        limit = seen.layers if most is None else min(most, seen.layers)
        return min(limit, max(seen.frozen, rule(seen)))

    return decide


def _most(seen: Observation, alpha: float) -> int:
    """Return the most layers that may be frozen now: a share of the active ones, and no more than
    `cap`, which has no rounding in its recurrence.
    """
    share = math.ceil(alpha * (seen.layers - seen.frozen) - GUARD)
    return min(cap(seen.layers, alpha, seen.evaluation), seen.frozen + share)


def _active(norms: Sequence[float], seen: Observation) -> np.ndarray | None:
    """Return the norms of the active layers; None if there are none, or one is not finite."""
    own = np.asarray(norms[seen.frozen :], dtype=float)
    if not np.isfinite(own).all():
        bad = seen.frozen + int(np.argmin(np.isfinite(own)))
        warnings.warn(
            f"gradient norm of layer {bad} is {norms[bad]}: nothing is frozen this time",
            stacklevel=2,
        )
        return None
    return own if len(own) else None


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}: give a share between 0 and 1, both excluded")
