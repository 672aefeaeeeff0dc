"""A batch, or all samples, as a pair (x, y) of tensors: what everybody gives in another form."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alkit.base import tree
from alkit.base.arguments import given
from alkit.data.labels import in_order

Words = dict[Any, int]  # classes that are words, with their numbers


def as_pair(batch: Any, number: int) -> tuple[Any, Any]:
    """Return a batch as (x, y): a pair, or a dictionary with "labels", which are y.

    Raises:
        TypeError: it is something else; says how to make a pair of that.
    """
    if isinstance(batch, Mapping) and "labels" in batch:
        rest = {name: value for name, value in batch.items() if name != "labels"}
        return as_inputs(rest), as_targets(batch["labels"])
    if isinstance(batch, tuple | list) and len(batch) == 2:
        try:
            return as_inputs(batch[0]), as_targets(batch[1])
        except TypeError:
            advice = "make tensors of both: torch.as_tensor(values)"
            what = f"({given(batch[0])}, {given(batch[1])})"
    elif isinstance(batch, Mapping):
        advice = "name the targets labels, or say which is which: (x, y)"
        what = f"a dict with {', '.join(map(str, batch))}"
    elif isinstance(batch, tuple | list):
        advice = "put what the first block takes in a tuple of its own: ((ids, mask), y)"
        what = f"{len(batch)} things"
    else:
        advice = "samples are a tuple, (x, y); batches are a loader or a list of such pairs"
        what = given(batch)
    raise TypeError(f"batch {number} must be a pair (x, y) of tensors, got {what}: {advice}")


def as_inputs(x: Any) -> Any:
    """Return inputs as tensors, nested as they are; arrays of floats get torch's default type.

    Raises:
        TypeError: there is no number in them.
    """
    if isinstance(x, Tensor):
        return x
    if isinstance(x, Mapping):
        return {name: as_inputs(own) if _is_nested(own) else own for name, own in x.items()}
    if isinstance(x, tuple | list) and any(_is_nested(each) for each in x):
        made = [as_inputs(each) if _is_nested(each) else each for each in x]
        return type(x)(*made) if hasattr(x, "_fields") else type(x)(made)
    values = x.to_numpy() if hasattr(x, "to_numpy") else np.asarray(x)
    if values.dtype.kind not in "iufbc" or not values.ndim:
        raise TypeError(f"inputs are {given(x)}: give tensors or arrays of numbers")
    found = _tensor(values)
    return found.to(torch.get_default_dtype()) if found.is_floating_point() else found


def _tensor(values: np.ndarray) -> Tensor:
    """Share an array's memory, also where it may only be read: nothing here writes to samples."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.as_tensor(values)


def _is_nested(value: Any) -> bool:
    return isinstance(value, Tensor | Mapping | tuple | np.ndarray)


def as_targets(y: Any, words: Words | None = None) -> Any:
    """Return targets as a tensor: whole numbers as int64, words as class numbers in sorted order.

    Targets of several parts stay nested.

    Args:
        words: classes that are words; filled if it is empty.
    Raises:
        ValueError: a word that `words` does not have.
        TypeError: something that is no array of numbers or words.
    """
    if isinstance(y, list) and y and all(isinstance(each, Tensor) and each.dim() for each in y):
        y = tuple(y)  # of several parts, as torch puts them together
    if isinstance(y, tuple | Mapping):
        return tree.map_tensors(as_targets, y)
    if not isinstance(y, Tensor):
        values = y.to_numpy() if hasattr(y, "to_numpy") else np.asarray(y)
        if words is not None and values.dtype.kind in "OUS":
            return _numbered(values, words)
        if values.dtype.kind not in "iufb" or not values.ndim:
            raise TypeError(f"targets are {given(y)}: give class numbers, words or numbers")
        y = _tensor(values)
        y = y.to(torch.get_default_dtype()) if y.is_floating_point() else y
    whole = not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)
    return y.long() if whole else y


def _numbered(values: np.ndarray, words: Words) -> Tensor:
    found = in_order(values.tolist())
    if not words:
        words |= {word: at for at, word in enumerate(found)}
    if unknown := [word for word in found if word not in words]:
        raise ValueError(f"labels {unknown[:5]} are not in the training part's {[*words][:10]}")
    return torch.tensor([words[word] for word in values.tolist()])
