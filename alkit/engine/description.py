"""What a module computes, beside the values of its tensors, as data that can be compared."""

from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

BASE = frozenset(vars(nn.Module()))  # attributes that every module has
BUILTIN = (BuiltinFunctionType, type)
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def described(module: nn.Module) -> list[Any]:
    """Return what makes a module's mathematics, beside the values of its tensors."""
    return [
        (
            name,
            type(each),
            [key for key in BASE if key.endswith("_hooks") and vars(each)[key]],
            [(key, _plain(value)) for key, value in _own(each).items()],
            [(key, _kind(t)) for key, t in (*each._parameters.items(), *each._buffers.items())],
        )
        for name, each in module.named_modules()
    ]


class Unknown(TypeError):
    """A value that compiled code can't be looked up by."""


def kinds_of(tree: Any) -> Any:
    """Return what code that is compiled for a tree of values depends on, to look it up by.

    Raises:
        Unknown: the tree holds what is no tensor and no plain value.
    """
    if isinstance(tree, Tensor):
        return tree.shape, tree.stride(), tree.dtype, tree.device, tree.requires_grad
    if isinstance(tree, dict):
        return dict, *((key, kinds_of(value)) for key, value in tree.items())
    if isinstance(tree, tuple | list):
        return type(tree), *map(kinds_of, tree)
    if not isinstance(tree, PLAIN):
        raise Unknown(f"what it is given holds a {type(tree).__name__}, and no tensor")
    return type(tree), tree


def _own(module: nn.Module) -> dict[str, Any]:
    """Return the attributes that a module has beside its tensors, modules and hooks."""
    return {k: v for k, v in vars(module).items() if k not in BASE or k == "training"}


def shareable(module: nn.Module) -> bool:
    """Say whether a description says all: no hooks, no attributes but plain ones."""
    hooks = any(vars(each)[key] for each in module.modules() for key in BASE if "_hooks" in key)
    plain = "id of" not in repr(
        [_plain(v) for each in module.modules() for v in _own(each).values()]
    )
    return plain and not hooks


def _kind(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    own = tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.requires_grad
    return tuple(map(str, own))


def _plain(value: Any) -> Any:
    """Return something equal for equal values; for those that can't be compared, their identity."""
    if isinstance(value, PLAIN):
        return type(value).__name__, value
    if isinstance(value, tuple | list):
        return type(value).__name__, [_plain(each) for each in value]
    if isinstance(value, dict):
        return [(_plain(k), _plain(v)) for k, v in value.items()]
    if isinstance(value, FunctionType) and not value.__closure__ or isinstance(value, BUILTIN):
        return "function", value.__module__, value.__qualname__, id(value)
    if type(value).__module__.startswith("alkit."):  # losses
        return type(value), [(k, _plain(v)) for k, v in vars(value).items()]
    return "id of", type(value), id(value)
