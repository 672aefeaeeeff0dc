"""Any module as a list of blocks, by its graph: torch.fx follows the values from call to call.

    def forward(x):                     block 0        block 1            block 2
        h = self.down(x)                x -> h
        m = self.middle(h)                    h  ->  (m, h)
        return self.up(m + h)                                (m, h)  ->  scores

A value that is still needed travels along, behind the newest one, which bridges read. One that no
weights have made, as a mask of padding, travels freely. The modules are the user's own, under their
own names; one with hooks is called as a whole. Cuts follow from structure and parameters alone.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from alkit.models.modes import evaluating, hooked, trained

LEAST = 0.01  # share of all parameters that a block has at least
MOST = 0.75  # a block with a larger share is cut again, where more values are live


class NotTraced(TypeError):
    """The graph of a module can't be followed, or has no place to cut."""


class Block(nn.Module):
    """A part of a traced network: takes the values that are live before it, in one tuple.

    Attributes:
        part: the graph in training mode.
        names: of the arguments of the network's forward; of its first block only.
        live: how many values it hands on: those that weights have made before others, and the
            newest first.
    """

    def __init__(
        self, part: fx.GraphModule, other: fx.GraphModule, names: Sequence[str], live: int
    ) -> None:
        super().__init__()
        self.part, self.names, self.live = part, tuple(names), live
        self.other = [other]  # in evaluation mode, of the same modules: not registered twice

    def forward(self, x: Any) -> Any:
        """Return the values that are live after it: one as it is, several in a tuple."""
        part = self.part if self.training else self.other[0]
        if isinstance(x, Mapping):
            return part(**x) if self.names else part(x)
        several = isinstance(x, list | tuple) and len(x) <= len(_inputs(part))
        return part(*x) if several else part(x)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        """Move it, in place: the network and the graph in the other mode hold the same tensors."""
        fetched = [each for each in self.part.graph.nodes if each.op == "get_attr"]
        for each in fetched:
            buffer = _fetched(self.part, str(each.target))
            if not isinstance(buffer, nn.Parameter):
                buffer.data = fn(buffer)
        return super()._apply(fn, recurse)


class _Tracer(fx.Tracer):
    """Follows calls into the user's modules, but not into one whose hooks would be lost."""

    proxy_buffer_attributes = True

    def __init__(self) -> None:
        super().__init__()
        self.around = _surroundings()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return hooked(m) or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *given: Any, **named: Any) -> fx.Node:
        if _surroundings() != self.around:
            raise NotTraced("its forward turns gradients or autocast on or off, for a part of it")
        return super().create_node(*given, **named)


def _surroundings() -> tuple[bool, ...]:
    """Return what an operator is called under, of which a graph keeps nothing."""
    casting = (torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *casting


Before = list[tuple[str, nn.Module, dict[str, tuple[Any, Any]]]]


@contextmanager
def _put_back(module: nn.Module) -> Iterator[Before]:
    """Put a module's attributes back, which a forward with values without numbers may write."""
    before = [(name, part, _held(part)) for name, part in module.named_modules()]
    try:
        yield before
    finally:
        for _, part, held in before:
            vars(part).clear()
            for key, (value, inside) in held.items():
                vars(part)[key] = value
                if isinstance(value, dict):
                    value.clear()
                    value.update(inside)
                elif isinstance(value, list):
                    value[:] = inside


def _refuse_writing(before: Before) -> None:
    for name, part, held in before:
        now = _held(part)
        for key in {**held, **now}:
            if _same(held.get(key), now.get(key)) or key.startswith("_tensor_constant"):  # torch's
                continue
            what = f"a buffer of {name or 'it'}" if key == "_buffers" else f"{name}.{key}"
            raise NotTraced(f"its forward writes {what.removeprefix('.')}")


def _chance() -> tuple[Any, ...]:
    """Return where the generators are of which a graph keeps nothing."""
    numpys = str(np.random.get_state())  # noqa: NPY002  # the one that networks draw from
    return random.getstate(), numpys, torch.get_rng_state().tolist()


def _held(part: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Return a module's attributes, and what is in those that are lists or dictionaries."""
    kinds = (dict, list)
    return {key: (v, v.copy() if isinstance(v, kinds) else None) for key, v in vars(part).items()}


def _same(one: tuple[Any, Any] | None, other: tuple[Any, Any] | None) -> bool:
    if one is None or other is None or one[0] is not other[0]:
        return False
    first, second = one[1], other[1]
    if isinstance(first, dict):
        return [*first] == [*second] and all(first[key] is second[key] for key in first)
    return first is None or (len(first) == len(second) and all(map(is_, first, second)))


def trace(module: nn.Module) -> list[nn.Module]:
    """Return a module as blocks.

    Raises:
        NotTraced: its forward branches on values, does more than its graph says, or has no place
            to cut; says why.
    """
    if hooked(module):
        raise NotTraced("it has hooks of its own, which no block would call: hook its parts")
    with _put_back(module) as before:
        chance = _chance()
        graph, other = _graphs(module)
        _refuse_writing(before)
        if _chance() != chance:
            raise NotTraced("its forward draws numbers that its graph would keep for good")
        return _blocks(module, graph, other)


def _graphs(module: nn.Module) -> tuple[fx.Graph, fx.Graph]:
    """Return a module's graph in training mode, and in evaluation mode."""
    try:
        with trained(module, warn=False):
            graph = _Tracer().trace(module)
        with evaluating(module):
            return graph, _Tracer().trace(module)
    except NotTraced:
        raise
    except Exception as error:  # whatever the module's own code raises at a value without numbers
        raise NotTraced(f"torch.fx can't follow its forward: {error}") from error


def _blocks(module: nn.Module, graph: fx.Graph, other: fx.Graph) -> list[nn.Module]:
    if [each.name for each in graph.nodes] != [each.name for each in other.nodes]:
        raise NotTraced("its forward takes other ways in training than in evaluation")
    cuts = _cuts(module, graph)
    if not cuts:
        raise NotTraced(f"there is no place to cut it: {_why_uncut(module, graph)}")
    parts = [_parts(module, own, cuts) for own in (graph, other)]
    names = [each.target for each in graph.nodes if each.op == "placeholder"]
    return [
        Block(part, twin, () if at else names, live)
        for at, ((part, live), (twin, _)) in enumerate(zip(*parts, strict=True))
    ]


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
    within = _between_uses(weights)

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


def _why_uncut(module: nn.Module, graph: fx.Graph) -> str:
    weights = [_weights(module, each) for each in _steps(graph)]
    often = Counter(id(p) for own in weights for p in own)
    shared = [name for name, p in module.named_parameters() if often[id(p)] > 1]
    if shared:
        return f"{shared[0]} is used early and late, and all its uses belong into one block"
    return f"no two modules one after another hold {LEAST:.0%} of its weights each"


def _between_uses(weights: Sequence[Sequence[nn.Parameter]]) -> set[int]:
    """Return the steps before which something was used that is used there or later."""
    last = {id(p): at for at, own in enumerate(weights) for p in own}
    spans = ((at, last[id(p)]) for at, own in enumerate(weights) for p in own)
    return {each for first, end in spans for each in range(first + 1, end + 1)}


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
    values = (_fetched(module, str(each.target)) for each in fetched)
    return [each for each in values if isinstance(each, nn.Parameter)]


def _fetched(module: nn.Module, target: str) -> Any:
    *path, name = target.split(".")
    return getattr(module.get_submodule(".".join(path)), name)


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
    module: nn.Module, graph: fx.Graph, cuts: Sequence[int]
) -> list[tuple[fx.GraphModule, int]]:
    """Return the graph of every block, with the number of values that it hands on."""
    steps = _steps(graph)
    learned = _made(module, steps)
    bounds = [0, *cuts, len(steps)]
    (result,) = [each.args[0] for each in graph.nodes if each.op == "output"]
    found = []
    for low, high in zip(bounds, bounds[1:], strict=False):
        own, made = fx.Graph(), {}
        inputs = (
            _live(steps, low, learned) if low else [n for n in graph.nodes if n.op == "placeholder"]
        )
        for each in inputs:
            if low:
                made[each] = own.placeholder(each.name)
            else:
                made[each] = own.node_copy(each)
        for each in steps[low:high]:
            for fetched in each.all_input_nodes:
                if fetched.op == "get_attr" and fetched not in made:
                    made[fetched] = own.node_copy(fetched)
            made[each] = own.node_copy(each, made.__getitem__)
        if high == len(steps):
            own.output(fx.node.map_arg(result, made.__getitem__))
            live = 1
        else:
            values = [made[each] for each in _live(steps, high, learned)]
            live = len(values)
            own.output(values[0] if live == 1 else tuple(values))
        found.append((fx.GraphModule(module, own), live))
    return found


def _inputs(part: fx.GraphModule) -> list[fx.Node]:
    return [each for each in part.graph.nodes if each.op == "placeholder"]
