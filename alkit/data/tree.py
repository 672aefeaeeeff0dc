"""Nested tuples, lists and dicts of tensors: what travels between blocks (a tensor and its mask,
say)."""

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

from torch import Tensor

__all__ = ["batch_size", "detach", "map_tensors", "micro_batches", "tensors", "to_device"]


def map_tensors(fn: Callable[[Tensor], Any], tree: Any) -> Any:
    """Apply `fn` to every tensor of `tree`, keeping its structure; other leaves pass as they
    are."""
    if isinstance(tree, Tensor):
        return fn(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(fn, branch) for branch in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(map_tensors(fn, branch) for branch in tree)
    if isinstance(tree, dict):
        return {key: map_tensors(fn, branch) for key, branch in tree.items()}
    return tree


def tensors(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of `tree` from left to right."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        for branch in tree.values():
            yield from tensors(branch)
    elif isinstance(tree, (tuple, list)):
        for branch in tree:
            yield from tensors(branch)


def detach(tree: Any) -> Any:
    """Cut every tensor of `tree` from its graph; storage is shared, nothing is copied."""
    return map_tensors(Tensor.detach, tree)


def to_device(tree: Any, device: Any) -> Any:
    """Move every tensor of `tree` to `device`; tensors that are there already are not copied.

    From pinned memory the host does not wait for the copy: what lies there may not change before.
    """

    def moved(tensor: Tensor) -> Tensor:
        waits = tensor.device.type != "cpu" or not tensor.is_pinned()
        return tensor.to(device, non_blocking=not waits)

    return map_tensors(lambda tensor: tensor if tensor.device == device else moved(tensor), tree)


def batch_size(tree: Any) -> int:
    """Return the length of the first dimension of the first tensor of `tree`."""
    first = next(tensors(tree), None)
    if first is None or first.dim() == 0:
        raise ValueError(
            f"a batch must hold a tensor with a batch dimension, got {type(tree).__name__}"
        )
    return first.shape[0]


def micro_batches(tree: Any, micro: int) -> Iterator[Any]:
    """Yield `micro` equal parts of a batch; raises a ValueError if it does not divide."""
    size = batch_size(tree)
    if size % micro:
        raise ValueError(f"a batch of {size} does not divide into {micro} micro-batches")
    step = size // micro
    for start in range(0, size, step):
        yield map_tensors(itemgetter(slice(start, start + step)), tree)
