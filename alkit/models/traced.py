"""Any module as a list of blocks, by its graph: torch.fx follows the values from call to call.

    def forward(x):                     block 0        block 1            block 2
        h = self.down(x)                x -> h
        m = self.middle(h)                    h  ->  (m, h)
        return self.up(m + h)                                (m, h)  ->  scores

A value that is still needed travels along, behind the newest one, which bridges read. The modules
are the user's own, under their own names; one with hooks is called as a whole.
"""

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from alkit.engine.modes import hooked, training

LEAST = 0.01  # share of all parameters that a block has at least
MOST = 0.75  # a block with a larger share is cut again, where more values are live


class NotTraced(Exception):
    """The graph of a module can't be followed, has no place to cut, or computes something else."""


class Block(nn.Module):
    """A part of a traced network: takes the values that are live before it, in one tuple.

    Attributes:
        part: the graph in training mode.
        first: it takes what the network's forward takes.
        several: it gives a tuple: values that weights have made, the newest first, then others.
    """

    def __init__(self, part: fx.GraphModule, other: fx.GraphModule, *, first: bool) -> None:
        super().__init__()
        self.part, self.first = part, first
        self.takes = len(part.graph.find_nodes(op="placeholder"))
        self.several = isinstance(part.graph.output_node().args[0], tuple)
        self.other = [other]  # in evaluation mode, of the same modules: not registered twice

    def forward(self, x: Any) -> Any:
        """Return the values that are live after it: one as it is, several in a tuple."""
        part = self.part if self.training else self.other[0]
        if self.first and isinstance(x, Mapping):
            return part(**x)
        return part(*x) if isinstance(x, list | tuple) and len(x) <= self.takes else part(x)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        """Move it, in place: the network and the graph in the other mode hold the same tensors."""
        for each in self.part.graph.find_nodes(op="get_attr"):
            buffer = attrgetter(str(each.target))(self.part)
            if not isinstance(buffer, nn.Parameter):
                buffer.data = fn(buffer)
        return super()._apply(fn, recurse)


class _Tracer(fx.Tracer):
    """Follows calls into the user's modules, but not into one whose hooks would be lost.

    Nor into one without parts of its own (drop path, say), or a BatchNorm with an activation: their
    way in training differs from that in evaluation.
    """

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        single = isinstance(m, _BatchNorm) or next(m.children(), None) is None
        return single or hooked(m) or super().is_leaf_module(m, module_qualified_name)


def trace(module: nn.Module) -> list[nn.Module]:
    """Return a module as blocks."""
    chance = _chance()
    try:
        twin = copy.deepcopy(module, {id(t): t for t in _held(module) if isinstance(t, Tensor)})
        training(twin)
        graph = _Tracer().trace(twin)
        writes = any(isinstance(each, fx.Proxy) for each in _held(twin))
        other = _Tracer().trace(twin.eval())
    except Exception as error:  # whatever the module's own code raises at a value without numbers
        raise NotTraced(f"torch.fx can't follow its forward: {error}") from error
    if writes:
        raise NotTraced("its forward writes what it computes into its modules")
    if _chance() != chance:
        raise NotTraced("its forward draws numbers that its graph would keep for good")
    if [each.name for each in graph.nodes] != [each.name for each in other.nodes]:
        raise NotTraced("its forward takes other ways in training than in evaluation")
    flow = _Flow(twin, graph)
    cuts = flow.cuts(0, len(flow.steps))
    if not cuts:
        raise NotTraced(
            f"there is no place to cut it: no two modules one after another hold {LEAST:.0%} of its"
            " weights each, or weights are used early and late"
        )
    pairs = zip(*(each.parts(module, cuts) for each in (flow, _Flow(twin, other))), strict=True)
    return [Block(*pair, first=not at) for at, pair in enumerate(pairs)]


def _held(module: nn.Module) -> list[Any]:
    """Return all that the attributes of a module and its parts hold, also in lists."""
    return tree_leaves([vars(part) for part in module.modules()])


def _chance() -> tuple[Any, ...]:
    numpys = str(np.random.get_state())  # noqa: NPY002  # the one that networks draw from
    return random.getstate(), numpys, torch.get_rng_state().tolist()


class _Flow:
    """The steps of a graph, the weights that each one uses, and the values live between them."""

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        self.module, self.graph = module, graph
        self.inputs = graph.find_nodes(op="placeholder")
        # attributes of the module are fetched where they are used
        self.steps = [each for each in graph.nodes if each.op.startswith("call")]
        self.weights = [self._weights(each) for each in self.steps]
        self.sizes = [sum(p.numel() for p in own) for own in self.weights]
        self.made: set[fx.Node] = set()  # by weights
        for each, own in zip(self.steps, self.weights, strict=True):
            if own or self.made.intersection(each.all_input_nodes):
                self.made.add(each)

    def _weights(self, node: fx.Node) -> list[nn.Parameter]:
        if node.op == "call_module":
            return list(self.module.get_submodule(str(node.target)).parameters())
        fetched = [each for each in node.all_input_nodes if each.op == "get_attr"]
        values = [attrgetter(str(each.target))(self.module) for each in fetched]
        return [each for each in values if isinstance(each, nn.Parameter)]

    def live(self, cut: int) -> list[fx.Node]:
        """Return the values made before a cut and needed after it, as `Block.several` says."""
        made = self.inputs + self.steps[:cut]
        before = set(made)
        needed = [each for each in reversed(made) if not before.issuperset(each.users)]
        return sorted(needed, key=lambda each: each not in self.made)

    def cuts(self, low: int, high: int) -> list[int]:
        """Return the first step of every block but the first: of one that learns.

        No cut is between two uses of the same weights; the fewest values that weights made travel.
        """
        total = sum(p.numel() for p in self.module.parameters()) or 1
        uses = [(at, id(p)) for at, own in enumerate(self.weights) for p in own]
        last = {p: at for at, p in uses}
        within = {each for at, p in uses for each in range(at + 1, last[p] + 1)}
        places = [at for at in range(low + 1, high) if self.weights[at] and at not in within]
        live = {at: len(self.made.intersection(self.live(at))) for at in places}
        for fewest in sorted({*live.values()}):
            found = [low]
            for at in places:
                least = min(sum(self.sizes[found[-1] : at]), sum(self.sizes[at:high]))
                if live[at] == fewest and least and least >= LEAST * total:
                    found.append(at)
            if found[1:]:
                bounds = pairwise([*found, high])
                large = [own for own in bounds if sum(self.sizes[slice(*own)]) > MOST * total]
                return sorted([*found[1:], *(at for own in large for at in self.cuts(*own))])
        return []

    def parts(self, module: nn.Module, cuts: Sequence[int]) -> list[fx.GraphModule]:
        """Return the graph of every block."""
        root = {}
        for each in self.graph.nodes:
            if each.op in ("call_module", "get_attr"):  # only the twin has what the tracer made
                home = module if each.op == "call_module" else self.module
                root[str(each.target)] = attrgetter(str(each.target))(home)
        result = self.graph.output_node().args[0]
        inputs, found = self.inputs, []
        for low, high in pairwise([0, *cuts, len(self.steps)]):
            own = fx.Graph()
            copies = {n: own.placeholder(n.name) if low else own.node_copy(n) for n in inputs}
            for each in self.steps[low:high]:
                for node in each.all_input_nodes:
                    if node.op == "get_attr" and node not in copies:
                        copies[node] = own.node_copy(node)
                copies[each] = own.node_copy(each, copies.__getitem__)
            inputs = self.live(high)
            handed: Any = inputs[0] if len(inputs) == 1 else tuple(inputs)
            handed = result if high == len(self.steps) else handed
            own.output(fx.node.map_arg(handed, copies.__getitem__))
            found.append(fx.GraphModule(root, own))
        return found
