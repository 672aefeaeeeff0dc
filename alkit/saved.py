"""Save trained models in files, and load them into the same network elsewhere.

A file holds only tensors, numbers and names; the user brings the code of the network.
"""

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from alkit.al.fit import recipe_for
from alkit.base import tree
from alkit.base.arguments import given
from alkit.checks import width_of
from alkit.data.given import Loader
from alkit.data.parts import DataSet
from alkit.engine import checkpoint as checkpoints
from alkit.engine.modes import layout_kept
from alkit.engine.trainer import Plan, Record
from alkit.methods import METHODS
from alkit.models.blocks import as_blocks, cut_once, dry_run, ours


def save(record: Record, path: str | Path) -> None:
    """Write the trained weights, and how their model was made, whole or not at all.

    Optimisers stay behind; a run that is to go on keeps them with `alkit.fit(checkpoint=)`.

    Raises:
        OSError: the file can't be written; one that was there before still is.
    """
    state = {"model": dict(record.model.state_dict()), "made": dict(record.made)}
    checkpoints.save(path, state | {"metrics": dict(record.metrics)})


def load(path: str | Path, model: Any) -> Any:
    """Return a trained model that predicts; its weights are those of the file.

    Args:
        model: as given to `alkit.fit`: the same blocks or network, trained or not, or the
            method's own model. Its weights are changed in place.
    Raises:
        ValueError: the file is damaged, asks for more than it holds, or is of another network;
            names the first difference.

    Example:
        >>> import tempfile, torch, alkit
        >>> net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        >>> data = torch.randn(64, 8), torch.randint(3, (64,))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     alkit.save(alkit.fit(net, data, method="al", progress=False), f"{folder}/net.pt")
        ...     alkit.load(f"{folder}/net.pt", net).predict(data[0]).shape
        torch.Size([64, 3])
    """
    saved = checkpoints.load(path)
    named = saved if isinstance(saved, dict) else {}
    if not all(isinstance(named.get(name), dict) for name in ("made", "model")):
        said = "is no model that alkit.save wrote: a run's checkpoint goes to fit"
        raise ValueError(f"{path} {said}")
    _check_sizes(path, saved["made"], saved["model"])
    with layout_kept([] if ours(model) else model):
        own = model if ours(model) else _made(path, model, saved["made"])
    if different := checkpoints.difference(saved["model"], own.state_dict()):
        raise ValueError(f"{path} holds another network: {different}")
    own.load_state_dict(saved["model"])
    return own


def made_of(plan: Plan, cuts: Sequence[int] | None) -> dict[str, Any]:
    """Return as plain data how a call made its model of blocks, which may have cuts."""
    method = METHODS[plan.method]
    made = {"method": plan.method, "seed": plan.seed, "num_classes": plan.classes}
    made |= {"cuts": None if cuts is None else [*cuts], "own_loss": plan.loss is not None}
    made |= {"sample": None, "changes": {}}
    if method.room != "al" or ours(plan.model):
        return made
    try:
        json.dumps(changes := dict(plan.settings))
    except TypeError:
        return made | {"changes": None}
    assert plan.sample is not None
    if method.family == "al" and method.name != "bp":  # the targets themselves stay behind
        changes = {"recipe": recipe_for(plan.sample[1], plan.loss)} | changes
    two = tree.rows(plan.sample, slice(2))
    sample = tree.map_tensors(lambda each: torch.zeros_like(each, device="cpu"), [*two])
    return made | {"sample": sample, "changes": changes}


def _check_sizes(path: str | Path, made: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    """Refuse what would make something larger than the file, before it is made."""
    size, said = Path(path).stat().st_size, f"{path} is damaged or not what alkit.save wrote:"
    for tensor in tree.tensors([weights, made["sample"]]):
        if tensor.numel() * tensor.element_size() > size:
            raise ValueError(f"{said} a tensor {given(tensor)} in {size:,} bytes")
    # a width is of a layer that the file holds
    rows = sum(len(tensor) for tensor in tree.tensors(weights) if tensor.dim())
    for name, value in {**(made["changes"] or {}), "num_classes": made["num_classes"]}.items():
        if type(value) is int and not 0 <= value <= rows:
            raise ValueError(f"{said} {name} is {value}, and its layers have {rows:,} rows")


def _made(path: str | Path, blocks: Any, made: Mapping[str, Any]) -> Any:
    """Make the model of blocks once more."""
    method, changes, sample = METHODS[made["method"]], made["changes"], made["sample"]
    blocks = cut_once(blocks, uncut=method.name == "bp")
    if changes is None:
        raise ValueError(
            f"{path} was made with a function or module as a setting, which a file does not keep:"
            " give the model that alkit.to_al, to_local or to_bp makes with it"
        )
    width = sample and width_of(dry_run(as_blocks(blocks), sample[0])[-1][1])
    plan = Plan(
        data=DataSet("data", Loader([])),
        model=blocks,
        method=method.name,
        seed=made["seed"],
        loss=_unknown if made["own_loss"] else None,
        settings=changes if made["cuts"] is None else {**changes, "cuts": made["cuts"]},
        sample=None if sample is None else tuple(sample),
        width=width,
        classes=made["num_classes"] or width,
    )
    return import_module(f"alkit.{method.room}.fit").model_of(plan)


def _unknown(scores: Any, y: Any) -> torch.Tensor:
    raise ValueError("a loaded model does not have the loss that it was trained by: set its loss")
