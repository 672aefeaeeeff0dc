"""When to stop training a layer: rules that say how many layers, counted from below, are frozen.

    evaluation T   1    2    3    4    5         schedule with alpha = 1/3, 12 layers
    frozen         4    7    9   10   11         ceil(12 (1 - (2/3)^T))

A rule is a pure function of an `Observation`; it never thaws a layer.

Source: PipeTransformer (He et al. 2021). Its published code runs `schedule` only; `gradnorm` is the
rule of its paper. Any function of an `Observation` is a rule, too.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

GUARD = 1e-9  # ceil(4.0000000001) is to be 4


@dataclass(frozen=True)
class Observation:
    """The input of a rule.

    Norms are a row an evaluation, a gradient norm a layer; frozen layers have 0, and layers without
    learning parameters -1. The last row is of the steps since the last evaluation.
    """

    layers: int  # of the network
    frozen: int  # of them, so far
    evaluation: int  # T, 1 at the first
    norms: tuple[tuple[float, ...], ...] = ()
    progress: float = 0.0  # share of all epochs that is done


Policy = Callable[[Observation], int]


def cap(layers: int, alpha: float, evaluation: int) -> int:
    """Return the most layers that may be frozen: ceil(L (1 - (1 - alpha)^T)).

    The closed form of u(T) = u(T - 1) + alpha (L - u(T - 1)), which would round to a faster one.
    """
    return math.ceil(layers * (1 - (1 - alpha) ** evaluation) - GUARD)


def most(seen: Observation, alpha: float) -> int:
    """Return the most layers that may be frozen now: a share of the active ones, within `cap`."""
    share = math.ceil(alpha * (seen.layers - seen.frozen) - GUARD)
    return min(cap(seen.layers, alpha, seen.evaluation), seen.frozen + share)


def gradnorm(seen: Observation, alpha: float) -> int:
    """Freeze up to the active layer with the smallest gradient norm, or to the cap if it is less.

    The rule of the paper: L_f(T) = min(L_f(T-1) + alpha (L - L_f(T-1)), the calmest active layer).
    Layers are counted, so an argmin at the lowest active layer freezes it.
    """
    active = np.asarray(seen.norms[-1][seen.frozen :] if seen.norms else ())
    if not len(active):
        return seen.frozen
    calmest = int(np.argmin(np.where(active < 0, np.inf, active)))
    return min(most(seen, alpha), seen.frozen + calmest + 1)


def policy(freeze: str | Policy, alpha: float = 1 / 3) -> Policy:
    """Return a rule, by name or as a function, kept monotone and within the layers."""
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}: give a share between 0 and 1, both excluded")
    rules: dict[str, Policy] = {
        "none": lambda seen: 0,
        "schedule": lambda seen: cap(seen.layers, alpha, seen.evaluation),
        "gradnorm": lambda seen: gradnorm(seen, alpha),
    }
    if not callable(freeze) and freeze not in rules:
        raise ValueError(f"freeze is {freeze!r}: give {', '.join(rules)}, or a function")
    rule = freeze if callable(freeze) else rules[freeze]
    return lambda seen: min(seen.layers, max(seen.frozen, rule(seen)))
