"""What errors are sent to without backprop: which modules can follow, and where layers begin.

A layer is a block with weights and all blocks after it that have none but those of norms and PReLU:
of Linear, BatchNorm, Tanh, Linear there are two. They follow from the blocks alone, not from cuts.
The last layer ends with its last parameter: what follows (LogSoftmax, Flatten) belongs to the loss,
so that errors are those of the values before it, as published.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from alkit.data import tree
from alkit.data.arguments import given
from alkit.delayed.methods import Method
from alkit.delayed.modules import Span
from alkit.models.blocks import dry_run, learns
from alkit.models.traced import Block

WEIGHTED = (nn.Linear, _ConvNd)
FOLLOWS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.PReLU)  # no layer of their own
KNOWN = (*WEIGHTED, *FOLLOWS, nn.Embedding, nn.EmbeddingBag)


def starts_of(blocks: Iterable[nn.Module]) -> list[int]:
    """Return the first block of each layer; what comes before all weights belongs to the first."""
    weighted = [at for at, block in enumerate(blocks) if any(map(_weighs, block.modules()))]
    return [0, *weighted[1:]]


def tail_of(blocks: Sequence[nn.Module]) -> int:
    """Return how many blocks there are up to the last one that has a parameter."""
    return max((at for at, block in enumerate(blocks, 1) if learns(block)), default=len(blocks))


def check_layers(method: Method, blocks: Sequence[nn.Module], sample: Any = None) -> None:
    """Refuse what a method of feedback can't train, before the first step.

    Args:
        sample: inputs, if there are any: outputs are looked at where each has an error of its own.
    Raises:
        ValueError: names the module, and says what can.
    """
    if method.errors == "direct":
        starts = starts_of(blocks)
        if len(starts) < 2:
            raise ValueError(
                f"{method.name} sends errors to the layers below the last, and there are none: give"
                " blocks of two or more that have weights, or take 1f1b"
            )
        outputs = [] if sample is None else dry_run(blocks, sample)
        for number, (_, output) in enumerate(outputs, 1):
            if number in (*starts, tail_of(blocks)):
                learning(blocks, number - 1, output, tree.batch_size(sample))
    elif method.errors != "exact":
        found = [part for at, block in enumerate(blocks) for part in _parts(at, block)]
        for name, module in found:
            _check_kind(method, name, module)
        own = [module for _, module in found if [*module.parameters(recurse=False)]]
        if not any(isinstance(module, WEIGHTED) for module in own[1:]):
            raise ValueError(
                f"{method.name} changes what linear and convolutional layers send to those below,"
                " and there is none that has one below it: take 1f1b, which does the same here"
            )


def check_cuts(method: Method, blocks: Sequence[nn.Module], cuts: Iterable[int]) -> None:
    """Refuse cuts inside a layer that has one error for the whole.

    Raises:
        ValueError: names the cut, and says where cuts may be.
    """
    starts = starts_of(blocks)
    for cut in cuts if method.errors == "direct" else ():
        if cut not in starts:
            kind = type(blocks[cut]).__name__
            raise ValueError(
                f"cuts has {cut}, and block {cut} ({kind}) belongs to the layer before it, which"
                f" {method.name} sends one error: cut before blocks {starts[1:]}"
            )


def learning(blocks: Sequence[nn.Module], number: int, output: Any, samples: int) -> Tensor:
    """Return the tensor of a block's output that an error can be made for, the one of real numbers.

    What travels along in a traced network has had its error: of its blocks it is the newest value.

    Raises:
        ValueError: there are none, several, or other rows; names the block, and says what is taken.
    """
    found = [each for each in tree.tensors(output) if tree.differentiable(each)]
    found = found[:1] if isinstance(blocks[number], Block) else found
    if len(found) == 1 and found[0].is_floating_point() and found[0].dim():
        if len(found[0]) == samples:
            return found[0]
    what = ", ".join(given(each) for each in found) or given(output)
    raise ValueError(
        f"block {number} gives {what} for {samples} samples: dfa sends an error to one tensor of"
        " real numbers with a row for each sample; give blocks that end so, or take fa or 1f1b"
    )


def check_seen(span: Span, seen: Collection[str], learned: Collection[str]) -> None:
    """Refuse a layer that has a gradient and multiplies by its weight in a way of its own.

    Args:
        seen: the weights that an operator had, by name.
        learned: the parameters that have a gradient.
    Raises:
        ValueError: names the layer, and says how it can be followed.
    """
    for name, module in span.named_modules():
        weight = f"{name}.weight"
        if isinstance(module, WEIGHTED) and weight in learned and weight not in seen:
            _, at, *inner = name.split(".")  # blocks.0.body.conv
            raise ValueError(
                f"{_named(span.first + int(at), '.'.join(inner))} is {type(module).__name__} and"
                " multiplies by its weight without F.linear or F.conv, so no B can take its place:"
                " use these, or take dfa or 1f1b"
            )


def _check_kind(method: Method, name: str, module: nn.Module) -> None:
    own = {each for each, _ in module.named_parameters(recurse=False)}
    if module._compiled_call_impl is not None or hasattr(module, "_orig_mod"):
        raise ValueError(
            f"{name} is compiled, and {method.name} has to see what it calls: give it as it is, or"
            " take dfa"
        )
    plain = not isinstance(module, WEIGHTED) or own <= {"weight", "bias"}
    if own and not (isinstance(module, KNOWN) and plain):
        raise ValueError(
            f"{name} is {type(module).__name__} with {', '.join(sorted(own))}: {method.name} knows"
            " linear and convolutional layers with weights of their own, beside norms and"
            " embeddings; take dfa, which runs each block as it is, or 1f1b"
        )


def _parts(number: int, block: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in block.named_modules():
        yield _named(number, name), module


def _named(number: int, name: str) -> str:
    return f"block {number}{name and f', {name},'}"


def _weighs(module: nn.Module) -> bool:
    own = next(module.parameters(recurse=False), None)
    return own is not None and not isinstance(module, FOLLOWS)
