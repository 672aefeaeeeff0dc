"""A look at a network or a loss leaves no trace: buffers, attributes and counters are put back."""

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

OWN = {*vars(nn.Module()), "cut"} - {"_buffers"}  # weights, parts, hooks, modes; alkit's own mark


@contextmanager
def untouched(*looked_at: Any) -> Iterator[None]:
    """Put back all that modules or a loss hold except weights, and states of random numbers."""
    parts = {id(part): part for each in looked_at for part in _parts(each)}.values()
    before = [(part, _held(part)) for part in parts]
    modules = [part for part in parts if isinstance(part, nn.Module)]
    buffers = [(own, own.clone()) for part in modules for own in part.buffers(recurse=False)]
    chance, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002  # people draw from it
    try:
        yield
    finally:
        random.setstate(chance)
        np.random.set_state(numpys)  # noqa: NPY002
        for own, was in buffers:
            own.data.copy_(was)
        for part, held in before:
            for name in {*_held(part)} - {*held}:
                delattr(part, name)
            for name, (own, was) in held.items():
                vars(part)[name] = _put_back(own, was)


def _parts(looked_at: Any) -> list[Any]:
    if isinstance(looked_at, nn.Module):
        return [part for part in looked_at.modules() if not isinstance(part, LazyModuleMixin)]
    return [looked_at] if hasattr(looked_at, "__dict__") and not isinstance(looked_at, type) else []


def _held(part: Any) -> dict[str, tuple[Any, Any]]:
    """Return attributes, and a copy of the plain ones that can change in place."""
    held = {name: own for name, own in vars(part).items() if name not in OWN}
    plain = {name: own for name, own in held.items() if type(own) in (list, dict, set)}
    return {name: (own, copy.copy(plain.get(name))) for name, own in held.items()}


def _put_back(own: Any, was: Any) -> Any:
    """Return an attribute with its former content."""
    if was is not None:
        own.clear()
        own.extend(was) if isinstance(own, list) else own.update(was)
    return own
