"""Any module as a list of blocks, by its graph: torch.fx follows the values from call to call.

    def forward(x):                     block 0        block 1            block 2
        h = self.down(x)                x -> h
        m = self.middle(h)                    h  ->  (m, h)
        return self.up(m + h)                                (m, h)  ->  scores

A value that is still needed travels along, behind the newest one, which bridges read. One that no
weights have made, as a mask of padding, travels freely. The modules are the user's own, under their
own names; one with hooks is called as a whole. Cuts follow from structure and parameters alone.
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
        live: how many values it hands on: those that weights have made before others, and the
            newest first.
    """

    def __init__(self, part: fx.GraphModule, other: fx.GraphModule, live: int, first: bool) -> None:
        super().__init__()
        self.part, self.live, self.first = part, live, first
        self.other = [other]  # in evaluation mode, of the same modules: not registered twice

    def forward(self, x: Any) -> Any:
        """Return the values that are live after it: one as it is, several in a tuple."""
        part = self.part if self.training else self.other[0]
        if self.first and isinstance(x, Mapping):
            return part(**x)
        takes = sum(each.op == "placeholder" for each in part.graph.nodes)
        return part(*x) if isinstance(x, list | tuple) and len(x) <= takes else part(x)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        """Move it, in place: the network and the graph in the other mode hold the same tensors."""
        for name in (str(each.target) for each in self.part.graph.nodes if each.op == "get_attr"):
            buffer = attrgetter(name)(self.part)
            if not isinstance(buffer, nn.Parameter):
                buffer.data = fn(buffer)
        return super()._apply(fn, recurse)


class _Tracer(fx.Tracer):
    """Follows calls into the user's modules, but not into one whose hooks would be lost."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return hooked(m) or super().is_leaf_module(m, module_qualified_name)


def trace(module: nn.Module) -> list[nn.Module]:
    """Return a module as blocks.

    Raises:
        NotTraced: its forward branches on values, writes what it computes into the module, or has
            no place to cut; says why.
    """
    if hooked(module):
        raise NotTraced("it has hooks of its own, which no block would call: hook its parts")
    chance = _chance()
    try:
        twin = copy.deepcopy(module, {id(each): each for each in _tensors(module)})
        training(twin)
        graph = _Tracer().trace(twin)
        held = [(own, vars(part)) for own, part in twin.named_modules()]
        wrote = [own for own, values in held if any(map(_is_proxy, tree_leaves(values)))]
        other = _Tracer().trace(twin.eval())
    except Exception as error:  # whatever the module's own code raises at a value without numbers
        raise NotTraced(f"torch.fx can't follow its forward: {error}") from error
    if wrote:
        raise NotTraced(f"its forward writes what it computes into {wrote[0] or 'itself'}")
    if _chance() != chance:
        raise NotTraced("its forward draws numbers that its graph would keep for good")
    if [each.name for each in graph.nodes] != [each.name for each in other.nodes]:
        raise NotTraced("its forward takes other ways in training than in evaluation")
    cuts = _cuts(twin, graph)
    if not cuts:
        raise NotTraced(
            f"there is no place to cut it: no two modules one after another hold {LEAST:.0%} of its"
            " weights each, or weights are used early and late"
        )
    pairs = zip(*(_parts(module, twin, own, cuts) for own in (graph, other)), strict=True)
    return [Block(part, one, live, not at) for at, ((part, live), (one, _)) in enumerate(pairs)]


def _tensors(module: nn.Module) -> list[Tensor]:
    """Return all that a copy shares with the module itself."""
    leaves = tree_leaves([vars(part) for part in module.modules()])
    return [each for each in leaves if isinstance(each, Tensor)]


def _is_proxy(value: Any) -> bool:
    return isinstance(value, fx.Proxy)


def _chance() -> tuple[Any, ...]:
    numpys = str(np.random.get_state())  # noqa: NPY002  # the one that networks draw from
    return random.getstate(), numpys, torch.get_rng_state().tolist()


def _steps(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes that compute; what the module holds is fetched where it is used."""
    return [each for each in graph.nodes if each.op.startswith("call")]


def _cuts(module: nn.Module, graph: fx.Graph) -> list[int]:
    """Return the first step of every block but the first.

    A cut is before a step that learns, not between two uses of the same weights, and where the
    fewest values are live that weights have made: one, if there are such places.
    """
    steps = _steps(graph)
    weights = [_weights(module, each) for each in steps]
    sizes = [sum(p.numel() for p in own) for own in weights]
    total = sum(p.numel() for p in module.parameters()) or 1
    made = _made(module, steps)
    live = [len(made.intersection(_live(steps, at, made))) for at in range(len(steps))]
    last = {id(p): at for at, own in enumerate(weights) for p in own}
    spans = [(at, last[id(p)]) for at, own in enumerate(weights) for p in own]
    within = {each for first, end in spans for each in range(first + 1, end + 1)}

    def cuts(low: int, high: int) -> list[int]:
        places = [at for at in range(low + 1, high) if weights[at] and at not in within]
        for fewest in sorted({live[at] for at in places}):
            found = [low]
            for at in places:
                least = min(sum(sizes[found[-1] : at]), sum(sizes[at:high]))
                if live[at] == fewest and least and least >= LEAST * total:
                    found.append(at)
            if found[1:]:
                bounds = pairwise([*found, high])
                large = [ends for ends in bounds if sum(sizes[slice(*ends)]) > MOST * total]
                return sorted([*found[1:], *(at for ends in large for at in cuts(*ends))])
        return []

    return cuts(0, len(steps))


def _made(module: nn.Module, steps: Sequence[fx.Node]) -> set[fx.Node]:
    """Return the steps whose values some weights have made."""
    made: set[fx.Node] = set()
    for each in steps:
        if _weights(module, each) or made.intersection(each.all_input_nodes):
            made.add(each)
    return made


def _weights(module: nn.Module, node: fx.Node) -> list[nn.Parameter]:
    if node.op == "call_module":
        return list(module.get_submodule(str(node.target)).parameters())
    fetched = [each for each in node.all_input_nodes if each.op == "get_attr"]
    values = [attrgetter(str(each.target))(module) for each in fetched]
    return [each for each in values if isinstance(each, nn.Parameter)]


def _live(steps: list[fx.Node], cut: int, made: set[fx.Node]) -> list[fx.Node]:
    """Return the values made before a cut and needed after it, in the order of `Block.live`."""
    after = set(steps[cut:])
    there = [each for each in steps[0].graph.nodes if each.op == "placeholder"] + steps[:cut]
    needed = [
        each
        for each in reversed(there)
        if any(user in after or user.op == "output" for user in each.users)
    ]
    return sorted(needed, key=lambda each: each not in made)


def _parts(
    module: nn.Module, twin: nn.Module, graph: fx.Graph, cuts: Sequence[int]
) -> list[tuple[fx.GraphModule, int]]:
    """Return the graph of every block, with the number of values that it hands on."""
    steps, made = _steps(graph), _made(twin, _steps(graph))
    names = [str(each.target) for each in graph.nodes if each.op in ("call_module", "get_attr")]
    torchs = [name for name in names if name.startswith("_tensor_constant")]
    root = {name: attrgetter(name)(twin if name in torchs else module) for name in names}
    (result,) = [each.args[0] for each in graph.nodes if each.op == "output"]
    inputs = [each for each in graph.nodes if each.op == "placeholder"]
    found = []
    for low, high in pairwise([0, *cuts, len(steps)]):
        own = fx.Graph()
        copies = {n: own.placeholder(n.name) if low else own.node_copy(n) for n in inputs}
        for each in steps[low:high]:
            for fetched in each.all_input_nodes:
                if fetched.op == "get_attr" and fetched not in copies:
                    copies[fetched] = own.node_copy(fetched)
            copies[each] = own.node_copy(each, copies.__getitem__)
        last = high == len(steps)
        inputs = [] if last else _live(steps, high, made)
        handed = result if last else inputs[0] if len(inputs) == 1 else tuple(inputs)
        own.output(fx.node.map_arg(handed, copies.__getitem__))
        found.append((fx.GraphModule(root, own), 1 if last else len(inputs)))
    return found
