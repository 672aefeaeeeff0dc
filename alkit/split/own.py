"""What a party brings itself: its network, and its samples, by functions of its own.

    alkit split device --config run.toml --index 0 --network mynet.py:make --data mydata.py:load

They are named on the party's own command line, run there alone, and are no keys of the
configuration: a file that comes from others names no code.
"""

import copy
import sys
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from alkit.data.arguments import given
from alkit.data.seeds import seed_for
from alkit.models.blocks import sending_one
from alkit.split.settings import ConfigError


def network(where: str, seed: int) -> list[nn.Module]:
    """Return the units that a function gives; the same seed gives the same weights.

    Args:
        where: of a function without arguments, "FILE.py:FUNCTION" or "package.module:function",
            that returns what `as_blocks` takes.
    Raises:
        ConfigError: there is no such function, or it returns no blocks.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "weights"))
        made = _called(where, "--network")
    try:
        return copy.deepcopy(sending_one(made))  # a function may give the same modules each time
    except (TypeError, ValueError) as error:
        raise ConfigError(f"--network {where} gives no blocks: {error}") from error


def samples(where: str) -> tuple[Tensor, Tensor]:
    """Return the samples that a function gives: x, floats (N, ...), and y, class numbers (N,).

    Args:
        where: of a function without arguments, as for `network`.
    Raises:
        ConfigError: there is no such function, or it returns something else.
    """
    made = _called(where, "--data")
    pair = isinstance(made, tuple | list) and len(made) == 2
    if not pair or not all(isinstance(each, Tensor) for each in made):
        raise ConfigError(f"--data {where} gives {given(made)}: return two tensors, (x, y)")
    x, y = made
    if not x.is_floating_point() or not len(x) or len(x) != len(y):
        found = f"{len(x)} samples of {x.dtype} and {len(y)} labels"
        raise ConfigError(f"--data {where} gives {found}: give as many of both, and x as floats")
    return x.float(), y


def _called(where: str, flag: str) -> Any:
    place, _, name = where.rpartition(":")
    if not place or not name:
        raise ConfigError(f"{flag} {where}: write FILE.py:FUNCTION or package.module:function")
    module = _module(place, flag)
    function = getattr(module, name, None)
    if not callable(function):
        there = [key for key, own in vars(module).items() if callable(own) and key[0] != "_"]
        found = ", ".join(there) or "none"
        raise ConfigError(f"{flag} {where}: {place} has no function {name} (there is: {found})")
    return function()


@cache
def _module(place: str, flag: str) -> ModuleType:
    path = Path(place)
    if path.suffix != ".py":
        try:
            return import_module(place)
        except ModuleNotFoundError as error:
            if not f"{place}.".startswith(f"{error.name}."):  # it is there, and lacks another
                raise
            raise ConfigError(f"{flag} {place}: Python finds no module {error.name}") from error
    if not path.is_file():
        raise ConfigError(f"{flag}: there is no file {path.absolute()}")
    spec = spec_from_file_location(f"alkit_own_{path.stem}", path)
    assert spec is not None  # so it is for .py
    assert spec.loader is not None
    sys.modules[spec.name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
