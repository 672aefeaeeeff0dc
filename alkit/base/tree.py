"""Nested tuples, lists and dicts of tensors, such as a tensor and its mask."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def map_tensors(fn: Callable[[Any], Any], tree: Any, kinds: Any = Tensor) -> Any:
    """Apply `fn` to every tensor of `tree`, or leaf of other kinds; all else stays."""
    if isinstance(tree, kinds):
        return fn(tree)
    if isinstance(tree, tuple | list):
        made = (map_tensors(fn, branch, kinds) for branch in tree)
        return type(tree)(*made) if hasattr(tree, "_fields") else type(tree)(made)
    if isinstance(tree, Mapping):
        pairs = {key: map_tensors(fn, branch, kinds) for key, branch in tree.items()}
        return type(tree)(**pairs) if hasattr(tree, "to_tuple") else pairs  # Hugging Face's output
    return tree


def tensors(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of `tree` from left to right."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict | tuple | list):
        for branch in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors(branch)


def differentiable(tensor: Tensor) -> bool:
    """Say whether a tensor can have a gradient: complex numbers can."""
    return tensor.is_floating_point() or tensor.is_complex()


def detach(tree: Any) -> Any:
    """Cut every tensor of `tree` from its graph; storage is shared, nothing is copied."""
    return map_tensors(Tensor.detach, tree)


def to_device(tree: Any, device: Any) -> Any:
    """Move every tensor of `tree`; one in pinned memory may not change before it is there."""

    def moved(tensor: Tensor) -> Tensor:
        if tensor.device == device:  # asking whether it is pinned takes three times as long
            return tensor
        pinned = tensor.device.type == "cpu" and tensor.is_pinned()
        return tensor.to(device, non_blocking=pinned)

    return map_tensors(moved, tree)


def batch_size(tree: Any) -> int:
    """Return the length of the first dimension of the first tensor of `tree`."""
    first = next(tensors(tree), None)
    if first is None or first.dim() == 0:
        raise ValueError(f"no tensor with a batch dimension is in this {type(tree).__name__}")
    return first.shape[0]


def joined(trees: Sequence[Any]) -> Any:
    """Return the batches of one thing, nested or not, as one."""
    first = trees[0]
    if isinstance(first, Tensor):
        return torch.cat(list(trees))
    if isinstance(first, dict):
        return {key: joined([each[key] for each in trees]) for key in first}
    if isinstance(first, tuple | list):
        return type(first)(map(joined, zip(*trees, strict=True)))
    return first


def micro_batches(tree: Any, micro: int) -> Iterator[Any]:
    """Yield `micro` parts of a batch, as equal as can be, see `rows`."""
    size = batch_size(tree)
    if size < micro:
        raise ValueError(f"a batch of {size} does not divide into {micro} micro-batches")
    for part in range(micro):
        yield rows(tree, slice(part * size // micro, (part + 1) * size // micro))


def rows(tree: Any, at: slice) -> Any:
    """Return these rows of a batch; a tensor with another number of rows belongs to all samples."""
    size = batch_size(tree)
    return map_tensors(lambda own: own[at] if own.dim() and len(own) == size else own, tree)


def near(one: Tensor, other: Tensor, relative: float | None = None) -> bool:
    """Say whether two tensors differ by rounding: by this share of their norm, 1e-3 or 1e-2."""
    wide = one.device.type == "cpu" and one.dtype not in (torch.bfloat16, torch.float16)
    relative = relative or (1e-3 if wide else 1e-2)
    one, other = (each.detach().cpu().to(torch.complex128) for each in (one, other))
    if not torch.equal(one.isfinite(), other.isfinite()):
        return False
    one, other = (each.where(each.isfinite(), 0) for each in (one, other))
    distance, size = (float(torch.linalg.vector_norm(each)) for each in (one - other, one))
    return distance <= relative * size + 1e-6 * one.numel() ** 0.5
