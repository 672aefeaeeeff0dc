"""Random numbers of compiled code as a function of seeds.

Compiled code without the interpreter's lock would draw from the process's generator, in the order
in which threads come. Here noise is a function of a seed and of positions, and a whole step's seeds
come in with the parameters:

    seeds drawn ──► random(shape) ──►       becomes       seeds[i] ──► random(shape) ──►
    x ──► bernoulli(p) ──►                  becomes       seeds[i] ──► random(shape) < p ──►
"""

from typing import Any

import torch
from torch import Tensor
from torch._inductor import inductor_prims
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node

from alkit.data.seeds import generator_for

SEEDS = 61  # an input of such a length and of whole numbers is taken for the seeds
SEVERAL = torch.ops.prims.inductor_seeds.default  # what other compiled noise begins with
COINS = torch.ops.aten.bernoulli.p, torch.ops.aten.bernoulli.default


def seeds_for(*key: int | str) -> Tensor:
    """Return the seeds of a step, int64 (SEEDS,)."""
    return torch.randint(2**31, (SEEDS,), generator=generator_for(*key))


class NoiseFromSeeds(CustomGraphPass):
    """Let all noise of a graph follow from seeds, which are an input or are drawn by a known call.

    Args:
        given: whether they are an input; otherwise `alkit.engine.random` sees to the call.
    """

    def __init__(self, *, given: bool) -> None:
        self.given = given

    def __call__(self, graph: Graph) -> None:
        """Change the graph.

        Raises:
            RuntimeError: something draws by other means, or too much draws.
        """
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        seeds = next((node for node in inputs if self.given and _is_seeds(node)), None)
        taken = 0
        for node in [*graph.nodes]:
            drawing = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            if not drawing or (seeds is None and node.target is SEVERAL):
                continue
            if node.target not in (*COINS, SEVERAL) or (self.given and seeds is None):
                raise RuntimeError(f"{node.target} draws numbers that no seed of ours decides")
            low, taken = taken, taken + (node.args[0] if node.target is SEVERAL else 1)
            if node.target is SEVERAL:  # no slice: a look at a seed sees no view's offset
                for look in [*node.users]:
                    look.args = (seeds, low + look.args[1])
            else:
                with graph.inserting_before(node):
                    node.replace_all_uses_with(_coins(graph, node, seeds, low))
            graph.erase_node(node)
        if taken > SEEDS:
            raise RuntimeError(f"more than {SEEDS} operators draw random numbers")

    def uuid(self) -> str:
        """Return what the compiler's cache tells this pass by."""
        return f"alkit noise from seeds, given={self.given}, 3"


def _coins(graph: Graph, node: Node, seeds: Node | None, number: int) -> Node:
    """Return ones with probability p and zeros, of the shape and dtype of the node."""
    size, whole = [*node.meta["val"].shape], {"dtype": torch.int64}
    if seeds is None:
        device = node.meta["val"].device
        seeds, number = _like(graph, node, SEVERAL, 1, device, size=(1,), **whole), 0
    seed = _like(graph, node, inductor_prims.lookup_seed, seeds, number, size=(), **whole)
    real = {"size": size, "dtype": torch.float32}
    drawn = _like(graph, node, inductor_prims.random, _sizes(graph, node), seed, "rand", **real)
    p = node.args[1] if len(node.args) > 1 else node.args[0]
    less = torch.ops.aten.lt.Tensor if isinstance(p, Node) else torch.ops.aten.lt.Scalar
    coins = _like(graph, node, less, drawn, p, size=size, dtype=torch.bool)
    cast = torch.ops.prims.convert_element_type.default
    return _like(graph, node, cast, coins, node.meta["val"].dtype)


def _sizes(graph: Graph, node: Node) -> list[Any]:
    """Return the shape of a node as arguments; where a size may vary, what asks for it."""
    found: list[Any] = []
    for dim, size in enumerate(node.meta["val"].shape):
        if not isinstance(size, int):
            asked = graph.call_function(torch.ops.aten.sym_size.int, (node.args[0], dim))
            asked.meta["val"] = size
        found.append(size if isinstance(size, int) else asked)
    return found


def _like(graph: Graph, node: Node, target: Any, *arguments: Any, **other: Any) -> Node:
    """Add a call whose result is like the node's, but for a size or dtype that is given."""
    made, old = graph.call_function(target, arguments), node.meta["val"]
    made.meta["val"] = old.new_empty(**{"size": [*old.shape], "dtype": old.dtype} | other)
    return made


def _is_seeds(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dtype == torch.int64 and value.shape == (SEEDS,)


FROM_INPUT, FROM_KNOWN_CALL = NoiseFromSeeds(given=True), NoiseFromSeeds(given=False)
