"""A backward in two halves: the gradients of the inputs at once, those of the weights later.

torch's own halves walk each operator's graph once in all, where two calls of `autograd.grad` walk
the way down twice. They are right where every weight meets what comes of the inputs; a whole
backward of a stage's first micro-batch shows it, and a stage where it isn't so is walked twice.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from alkit.data import tree

Gradients = list[Tensor | None]


@dataclass
class Ends:
    """Where a stage's backward begins, and what it is to find.

    Attributes:
        outputs, above: tensors with a graph, and the gradient of each.
        weights, inputs: leaves of that graph.
    """

    outputs: list[Tensor]
    above: list[Tensor]
    weights: list[Tensor]
    inputs: list[Tensor]

    def gradients(self, *leaves: Tensor, keep: bool = False) -> Gradients:
        """Return the gradients of leaves, None where nothing leads to one.

        Args:
            keep: the graph is needed again.
        """
        if not leaves or not self.outputs:  # a detach may leave no outputs
            return [None] * len(leaves)
        options = {"allow_unused": True, "retain_graph": keep}
        return list(torch.autograd.grad(self.outputs, leaves, self.above, **options))


class Halves:
    """The half backwards of one stage."""

    def __init__(self) -> None:
        self.splits: bool | None = None  # whether torch's halves are right here

    def begin(self, ends: Ends) -> tuple[Gradients, Callable[[], Gradients]]:
        """Return the inputs' gradients, and what gives the weights' when there is time."""
        if not ends.inputs or not ends.outputs:  # nothing to hand on: all of it can wait
            return [None] * len(ends.inputs), partial(ends.gradients, *ends.weights)
        if self.splits is None:
            return self._first(ends)
        if self.splits:
            return _apart(ends)
        return ends.gradients(*ends.inputs, keep=True), partial(ends.gradients, *ends.weights)

    def _first(self, ends: Ends) -> tuple[Gradients, Callable[[], Gradients]]:
        """Find all gradients at once, and see whether torch's halves find the same."""
        whole = ends.gradients(*ends.inputs, *ends.weights, keep=True)
        try:
            handed, rest = _apart(ends)
            self.splits = all(map(_alike, whole, [*handed, *rest()]))
        except RuntimeError:  # torch's halves walk what no input reaches twice
            self.splits = False
        count = len(ends.inputs)
        return whole[:count], lambda: whole[count:]


def _apart(ends: Ends) -> tuple[Gradients, Callable[[], Gradients]]:
    # here and not above: it brings torch's compiler with it, which takes seconds
    from torch.distributed.pipelining import _backward as halves

    outputs = [own.clone() if own._is_view() else own for own in ends.outputs]  # it can't cut views
    weights: Any = ends.weights  # leaves, which torch takes as it takes parameters
    handed, groups = halves.stage_backward_input(outputs, ends.above, ends.inputs, iter(weights))

    def rest() -> Gradients:
        halves.stage_backward_weight(iter(weights), groups)
        return [weight.grad for weight in ends.weights]

    return list(handed), rest


def _alike(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return tree.near(one, other)
