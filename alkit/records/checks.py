"""What is wrong with a call can mostly be seen on two samples, before anything trains."""

from typing import Any

import torch
from torch import Tensor, nn

from alkit.data import tree
from alkit.data.given import Pairs
from alkit.data.labels import check_shares
from alkit.data.parts import Part
from alkit.engine.asked import Asked
from alkit.engine.device import place
from alkit.models.blocks import as_blocks
from alkit.models.modes import evaluating

__all__ = ["check_types_and_targets"]


def check_types_and_targets(asked: Asked, family: str) -> None:
    """Look at two samples: their type against the weights', their targets against the loss.

    Data that can be read batch by batch alone are not looked at.

    Raises:
        ValueError: says what was given, and what to give.
    """
    train = asked.data.train
    if not isinstance(asked.model, nn.Module | list | tuple):
        return  # what can be read once is read by the method
    cast = asked.plan.precision != "float32"  # operators see to types themselves
    if isinstance(train, Part) and not cast:  # its targets are classes
        _check_type(train.x, asked.model)
    if not isinstance(train, Pairs):
        return
    x, y = tree.map_tensors(lambda each: each[:2], (train.x, train.y))
    if not cast:
        _check_type(x, asked.model)
    if family == "al" and asked.method != "bp":
        return  # its recipe says what it compares
    if asked.loss is None and y.is_floating_point():
        check_shares(y)
    if asked.loss is not None and asked.loss.__module__.startswith("torch.nn"):
        _check_shape(asked.model, x, y)


def _check_type(x: Any, model: Any) -> None:
    given = next((each.dtype for each in tree.tensors(x) if each.is_floating_point()), None)
    modules = [model] if isinstance(model, nn.Module) else list(model)
    parameters = (each for module in modules for each in module.parameters())
    own = next((each.dtype for each in parameters if each.is_floating_point()), given)
    if given is not None and given != own:
        name = str(own).removeprefix("torch.")
        raise ValueError(
            f"x is {given} and the network's weights are {own}: give x.to({own})"
            f", or make the network {name}"
        )


@torch.no_grad()
def _check_shape(model: Any, x: Any, y: Tensor) -> None:
    """See that a loss of torch's does not spread numbers (B,) over scores (B, 1)."""
    if hasattr(model, "predict") or not y.is_floating_point():
        return
    for block in as_blocks(model):
        with evaluating(block):
            x = block(place(x, block))
    if isinstance(x, Tensor) and x.shape != y.shape and x.numel() == y.numel():
        raise ValueError(
            f"targets are {tuple(y.shape)} and scores {tuple(x.shape)} for {len(y)} samples, which"
            " the loss would spread over each other: give y[:, None], or a network that ends alike"
        )
