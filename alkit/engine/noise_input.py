"""Random numbers of a compiled step as a function of its inputs: the seeds are one of them.

Compiled code would draw from the process's generator, in the order in which threads come. Here its
seeds come in with the parameters, and what dropout draws is a function of a seed and of positions:

    x ──► bernoulli(p) ──►        becomes        seeds[i] ──► random(shape) < p ──►
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch._inductor import inductor_prims
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node

from alkit.data.seeds import generator_for

__all__ = ["SEEDS", "SeedsFromInput", "seeds_for"]

SEEDS = 61  # an input of such a length and of whole numbers is taken for the seeds
COINS = torch.ops.aten.bernoulli.p, torch.ops.aten.bernoulli.default


def seeds_for(*key: int | str) -> Tensor:
    """Return the seeds of a step, int64 (SEEDS,)."""
    return torch.randint(2**31, (SEEDS,), generator=generator_for(*key))


class SeedsFromInput(CustomGraphPass):
    """Replace what draws by functions of the input that holds the seeds."""

    def __call__(self, graph: Graph) -> None:
        """Change the graph.

        Raises:
            RuntimeError: something draws by other means, or too much draws.
        """
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        given = next((node for node in inputs if _is_seeds(node.meta.get("val"))), None)
        numbers = count()
        for node in [*graph.nodes]:
            if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
                continue
            if given is None or node.target not in COINS:
                raise RuntimeError(f"{node.target} draws random numbers")
            with graph.inserting_before(node):
                new = _coins(graph, node, given, numbers)
            node.replace_all_uses_with(new)
            graph.erase_node(node)
        if next(numbers) > SEEDS:
            raise RuntimeError(f"more than {SEEDS} operators draw random numbers")

    def uuid(self) -> str:
        """Return what the compiler's cache tells this pass by."""
        return "alkit seeds from an input, 2"


def _coins(graph: Graph, node: Node, given: Node, numbers: Iterator[int]) -> Node:
    """Return ones with probability p and zeros, of the shape and dtype of the node."""
    like = node.meta["val"]

    def call(target: Any, *arguments: Any, **like_other: Any) -> Node:
        made = graph.call_function(target, arguments)
        made.meta["val"] = like.new_empty(**like_other)
        return made

    size = [*like.shape]
    seed = call(inductor_prims.lookup_seed, given, next(numbers), size=(), dtype=torch.int64)
    drawn = call(inductor_prims.random, size, seed, "rand", size=size, dtype=torch.float32)
    p = node.args[1] if len(node.args) > 1 else node.args[0]
    less = torch.ops.aten.lt.Tensor if isinstance(p, Node) else torch.ops.aten.lt.Scalar
    coins = call(less, drawn, p, size=size, dtype=torch.bool)
    cast = torch.ops.prims.convert_element_type.default
    return call(cast, coins, like.dtype, size=size)


def _is_seeds(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.int64 and value.shape == (SEEDS,)
