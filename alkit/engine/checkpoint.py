"""Checkpoints: all that training changes, in a file that is whole at any moment.

Nothing but tensors, numbers, strings, lists and dicts is stored, and nothing else is ever loaded.
A run goes on from a file of the same run: shapes, settings, options of the optimisers, the text of
the network, and the loss of the saved weights on the first training rows are compared.
"""

import math
import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from reprlib import repr  # a file decides how much there is to print
from typing import Any

import torch
from torch import Tensor

from alkit.base import tree
from alkit.base.arguments import as_plain
from alkit.base.files import replacing
from alkit.base.seeds import drawing_from, generator_for
from alkit.data.given import Source, first_batch
from alkit.engine.losses import loss_of

VERSION = 1
ROWS = 32
ROUNDING = 1e-2  # of the loss on another device
# a value that a scheduler changes, or keeps in a group, doesn't mark another optimiser
MOVED = {"params", "lr", "initial_lr", "max_lr", "min_lr", "scheduler"}
FREE = "LBFGS", "Adafactor"  # whose states have shapes of their own
CYCLED = {"momentum", "betas", "base_momentum", "max_momentum"}


def save(path: str | Path, state: Mapping[str, Any]) -> None:
    """Write tensors, numbers and texts, in lists and dicts, in one step for all readers."""
    try:
        with replacing(path) as partial, partial.open("wb") as file:
            torch.save({"version": VERSION, "state": _plain(dict(state))}, file)
    except RuntimeError as error:  # torch's own writer says only where it stopped
        raise OSError(f"{path} could not be written: {error.__context__ or error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_plain(key): _plain(own) for key, own in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return as_plain(value)


def load(path: str | Path) -> dict[str, Any]:
    """Return the saved state, with all tensors on the CPU."""
    try:
        if Path(path).is_fifo() or Path(path).is_char_device():
            raise ValueError("it is no file")
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
    except Exception as error:  # a broken archive or pickle raises errors of any type
        # torch's own words for a pickle advise to load without the check
        foreign = isinstance(error, pickle.UnpicklingError)
        why = "it holds more than tensors, numbers and texts" if foreign else str(error)[:80]
        raise ValueError(f"{path} is damaged or no checkpoint ({why}): delete it") from error
    if version != VERSION:
        raise ValueError(f"{path} is a checkpoint of version {version}; this is version {VERSION}")
    return state


def snapshot(model: Any) -> dict[str, Any]:
    """Return weights and states of the optimisers; the tensors are those in the model."""
    named = model.named_optimizers().items()
    states = {name: each.state_dict() if each is not None else None for name, each in named}
    return {"model": dict(model.state_dict()), "optimizers": states}


def restore(model: Any, saved: Mapping[str, Any]) -> None:
    """Put a snapshot of an equal model back into it and its optimisers."""
    model.load_state_dict(saved["model"])
    for name, optimizer in model.named_optimizers().items():
        if optimizer is not None:
            put_back(optimizer, saved["optimizers"][name])


def put_back(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Give an optimiser its state back, with moments that fit."""
    held = [each for group in optimizer.param_groups for each in group["params"]]
    pairs = ((held[at], own) for at, own in state["state"].items() if at < len(held))
    check_moments(optimizer, pairs)
    optimizer.load_state_dict(dict(state))


def check_moments(optimizer: Any, pairs: Iterable[tuple[Tensor, Mapping[str, Any]]]) -> None:
    """Refuse moments with another shape than their weight: torch's C++ would read beyond them."""
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim.") or kind.__name__ in FREE:
        return
    for weight, moments in pairs:
        for name, own in moments.items():
            if isinstance(own, Tensor) and own.dim() and own.shape != weight.shape:
                said = f"{name} is of {tuple(own.shape)}, and its weight of {tuple(weight.shape)}"
                raise ValueError(f"the checkpoint is damaged or of another run: {said}")


def marks(state: Mapping[str, Any], settings: Mapping[str, Any], network: str) -> dict[str, Any]:
    """Return by name the marks that tell a run from others; `network` is the printed model."""
    found = dict(state.get("model", {})) | dict(settings)
    for name, each in state.get("optimizers", {}).items():
        for at, group in enumerate(each["param_groups"] if each else ()):
            own = set(group) - MOVED - (CYCLED if "base_momentum" in group else set())
            found |= {f"{key} of optimiser {name}.{at}": group[key] for key in sorted(own)}
    lines = enumerate(re.sub(r" at 0x[0-9a-f]+", "", network).splitlines(), 1)
    return found | {f"line {at} of the network": line.strip() for at, line in lines}


def difference(saved: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """Name the first thing that one lacks or has otherwise, tensors by type and shape; or ""."""
    names = {**own, **saved}
    for name in sorted(names, key=lambda each: not isinstance(names[each], Tensor)):  # these first
        both = (side.get(name, "missing") for side in (saved, own))
        there, here = (f"{e.dtype} of {(*e.shape,)}" if isinstance(e, Tensor) else e for e in both)
        if there != here:
            told = (e if isinstance(e, str) else repr(e) for e in (there, here))
            return "{} is {} there and {} here".format(name, *told)
    return ""


def first_rows(source: Source) -> tuple[Any, Any] | None:
    """Return the first rows of a part; None where they differ when they are read twice."""
    rows, again = (tree.rows(first_batch(source, ROWS), slice(ROWS)) for _ in range(2))
    pairs = zip(tree.tensors(rows), tree.tensors(again), strict=True)
    return rows if all(torch.equal(one, other) for one, other in pairs) else None


@torch.no_grad()
def loss_on(rows: tuple[Any, Any] | None, trainer: Any) -> float | None:
    """Return the loss of a trainer's model as it is; None without rows."""
    if rows is None:
        return None
    torch.clear_autocast_cache()
    x, y = rows
    with drawing_from(generator_for("rows").get_state()):
        return float(loss_of(trainer.loss, trainer.model.predict(x), y).mean())


def other_loss(saved: float | None, here: float | None) -> str:
    """Say how the loss of the saved weights on the first rows was another one; "" if it was not."""
    if saved is None or here is None or (math.isnan(saved) and math.isnan(here)):
        return ""
    if math.isclose(saved, here, rel_tol=ROUNDING, abs_tol=1e-6):
        return ""
    both = f"{saved:.6g} on the first {ROWS} rows there and of {here:.6g} here"
    return f"its weights have a loss of {both}, so inputs, network, targets or loss are others"
