"""When to stop training a layer: rules that say how many layers, counted from below, are frozen.

    evaluation T   1    2    3    4    5         schedule with alpha = 1/3, 12 layers
    frozen         4    7    9   10   11         ceil(12 (1 - (2/3)^T))

A rule is a pure function of an `Observation`; it never thaws a layer. `Observation.norms` is what
the gradient rules look at: for every evaluation so far, one norm a layer over the steps since the
last one.

Source: PipeTransformer (He et al. 2021). Its published code runs `schedule` only; `gradnorm` is its
paper's rule. Any function of an `Observation` is a rule, too.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

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


RULES = (none, schedule, gradnorm)
POLICIES: dict[str, Callable[..., Policy]] = {rule.__name__: rule for rule in RULES}


def policy(name: str, **options: object) -> Policy:
    """Return a rule by name, kept monotone and within the layers.

    Args:
        options: of the rule: alpha.
    Raises:
        ValueError: an unknown name, or options out of range.
    """
    if name not in POLICIES:
        raise ValueError(f"freeze is {name!r}: give {', '.join(POLICIES)}, or a function")
    try:
        rule = POLICIES[name](**options)
    except TypeError as error:
        raise ValueError(f"freeze={name!r} does not take these options: {error}") from error

    return kept(rule)


def kept(rule: Policy) -> Policy:
    """Keep a rule monotone, and within the layers."""
    return lambda seen: min(seen.layers, max(seen.frozen, rule(seen)))


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
