"""Checkpoints: all that training changes, in a file that is whole at any moment.

Nothing but tensors, numbers, strings, lists and dicts is stored, and nothing else is ever loaded.
"""

import pickle
import zipfile
from collections import defaultdict
from collections.abc import Mapping
from errno import ENOSPC
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from alkit.data.arguments import as_plain
from alkit.data.files import replacing

VERSION = 1
# what a scheduler changes, or keeps in a group, is no mark of another optimiser
MOVED = {"lr", "initial_lr", "max_lr", "min_lr", "scheduler"}
CYCLED = {"momentum", "betas", "base_momentum", "max_momentum"}


def save(path: str | Path, state: Mapping[str, Any]) -> None:
    """Write `state` to `path`, in one step for whoever reads or kills.

    Args:
        state: tensors, numbers, strings, None, and lists and dicts of these; numbers of numpy
            become Python's.
    """
    state = _plain(dict(state))
    try:
        with replacing(path) as partial, partial.open("wb") as file:
            torch.save({"version": VERSION, "state": state}, file)
    except (OSError, RuntimeError) as error:  # torch's own writer says only where it stopped
        full = any(getattr(each, "errno", 0) == ENOSPC for each in (error, error.__context__))
        why = "there is no space left on its disk" if full else str(error)
        raise OSError(
            f"{path} could not be written: {why}; what stood there before still does"
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_plain(key): _plain(own) for key, own in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return as_plain(value)


def load(path: str | Path) -> dict[str, Any]:
    """Return what was saved, with all tensors on the CPU.

    Raises:
        ValueError: the file is damaged, no checkpoint, or one of another version of alkit.
    """
    try:
        # torch leaves the checksums that it writes unread, and packs nothing
        with zipfile.ZipFile(path) as archive:
            size = sum(each.file_size for each in archive.infolist())
            if size > Path(path).stat().st_size:
                raise zipfile.BadZipFile(f"it would unpack to {size:,} bytes, more than it has")
            if (damaged := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"wrong checksum of {damaged}")
        stored = torch.load(path, map_location="cpu", weights_only=True)
        version, state = stored["version"], stored["state"]
    except OSError:
        raise
    except Exception as error:  # what a broken archive or pickle raises is of any type
        # torch's own words for the second advise to load without the check
        other = isinstance(error, pickle.UnpicklingError)
        text = "it holds more than tensors, numbers and texts" if other else str(error)[:80]
        raise ValueError(
            f"{path} is damaged or no checkpoint ({text}): delete it to start anew"
        ) from error
    if version != VERSION:
        raise ValueError(f"{path} is a checkpoint of version {version}; this is version {VERSION}")
    return state


def snapshot(model: Any) -> dict[str, Any]:
    """Return all that training changes, ready to be saved; the tensors are the model's own.

    Args:
        model: a module that names its optimisers; None where a part has no parameters to train.
    """
    states = {
        name: optimizer.state_dict() if optimizer is not None else None
        for name, optimizer in model.named_optimizers().items()
    }
    return {"model": dict(model.state_dict()), "optimizers": states}


def restore(model: Any, saved: Mapping[str, Any]) -> None:
    """Put a snapshot that has passed `check` back into the model and its optimisers."""
    model.load_state_dict(saved["model"])
    for name, optimizer in model.named_optimizers().items():
        if optimizer is not None:
            optimizer.load_state_dict(saved["optimizers"][name])


def check(
    path: str | Path,
    saved: Mapping[str, Any],
    own: Mapping[str, Any],
    settings: Mapping[str, Any],
    network: str = "",
) -> None:
    """Say whether a saved run is this one, before anything is changed.

    Args:
        own: a snapshot of what is to go on; "optimizers" are compared where it has them.
        network: how the model prints itself.
    Raises:
        ValueError: another model, optimiser or setting; names the first difference.
    """
    there, here = (defaultdict(dict, side) for side in (saved, own))
    different = (
        difference(there["model"], here["model"])
        or _setting_difference(there["settings"], settings)
        or _optimizer_difference(there["optimizers"], here["optimizers"])
        or _text_difference(saved.get("network", network), network)
    )
    refuse(path, different)


def refuse(path: str | Path, different: str) -> None:
    """Raise a ValueError if something is different in a checkpoint."""
    if different:
        raise ValueError(f"{path} is of another run: {different}; give another path, or delete it")


def difference(saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """Name the first tensor that one lacks or has in another type or shape; "" if there is none."""
    for name in [*own, *saved]:
        there, here = (_kind(side.get(name)) for side in (saved, own))
        if there != here:
            return f"{name} is {there} there and {here} in this model"
    return ""


def _optimizer_difference(saved: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    for name in [*own, *saved]:
        there, here = (_options(side.get(name)) for side in (saved, own))
        for key in [*here, *there]:
            if there.get(key) != here.get(key):
                return (
                    f"optimiser {name} has {key} = {there.get(key)} there"
                    f" and {here.get(key)} in this model"
                )
    return ""


def _setting_difference(saved: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    for name in [*own, *saved]:
        if saved.get(name) != own.get(name):
            return f"{name} is {saved.get(name)!r} there and {own.get(name)!r} here"
    return ""


def _text_difference(saved: str, own: str) -> str:
    for there, here in zip_longest(saved.splitlines(), own.splitlines(), fillvalue="nothing"):
        if there != here:
            return f"the network has {there.strip()} there and {here.strip()} here"
    return ""


def _options(state: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return an optimiser's settings by parameter group, and how many parameters each has."""
    if state is None:
        return {}
    made = {"groups": len(state["param_groups"])}
    for at, group in enumerate(state["param_groups"]):
        kept = group | {"params": len(group["params"])}
        moved = MOVED | (CYCLED if "base_momentum" in group else set())
        made |= {f"{at}.{key}": value for key, value in kept.items() if key not in moved}
    return made


def _kind(tensor: Any) -> str:
    if not isinstance(tensor, Tensor):
        return "missing" if tensor is None else type(tensor).__name__
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
