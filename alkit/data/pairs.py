"""A batch, or all samples, as a pair (x, y) of tensors: what everybody gives in another form."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alkit.base import tree
from alkit.base.arguments import given

NESTED = (Tensor, Mapping, tuple, np.ndarray)


def as_pair(batch: Any, number: int) -> tuple[Any, Any]:
    """Return a batch as (x, y): a pair, or a dictionary with "labels", which are y.

    Raises:
        TypeError: it is something else; says how to make a pair of that.
    """
    if isinstance(batch, Mapping) and "labels" in batch:
        batch = {name: own for name, own in batch.items() if name != "labels"}, batch["labels"]
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        said = f"batch {number} must be a pair (x, y) of tensors, got {given(batch)}"
        raise TypeError(
            f"{said}: several inputs are a tuple in it, ((ids, mask), y), and a dict has its"
            ' targets as "labels"'
        )
    return as_inputs(batch[0]), as_targets(batch[1])


def as_inputs(x: Any) -> Any:
    """Return inputs as tensors, nested as they are; arrays of floats get torch's default type.

    Raises:
        TypeError: there is no number in them.
    """
    if isinstance(x, Tensor):
        return x
    if isinstance(x, Mapping):
        return {name: as_inputs(own) if isinstance(own, NESTED) else own for name, own in x.items()}
    if isinstance(x, tuple | list) and any(isinstance(own, NESTED) for own in x):
        made = (as_inputs(own) if isinstance(own, NESTED) else own for own in x)
        return type(x)(*made) if hasattr(x, "_fields") else type(x)(made)
    return _numbers(x, "inputs")


def as_targets(y: Any) -> Any:
    """Return targets as a tensor: whole numbers as int64. Targets of several parts stay nested.

    Raises:
        TypeError: something that is no array of numbers.
    """
    if isinstance(y, list) and y and all(isinstance(each, Tensor) and each.dim() for each in y):
        y = tuple(y)  # of several parts, as torch puts them together
    if isinstance(y, tuple | Mapping):
        return tree.map_tensors(as_targets, y)
    y = y if isinstance(y, Tensor) else _numbers(y, "targets")
    whole = not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)
    return y.long() if whole else y


def array_of(values: Any) -> np.ndarray:
    """Return a list, or what pandas has, as an array."""
    return values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)


def _numbers(values: Any, what: str) -> Tensor:
    """Share an array's memory, also where it may only be read: nothing here writes to samples."""
    array = array_of(values)
    if array.dtype.kind not in "iufbc" or not array.ndim:
        raise TypeError(f"{what} are {given(values)}: give tensors or arrays of numbers")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        found = torch.as_tensor(array)
    return found.to(torch.get_default_dtype()) if found.is_floating_point() else found
