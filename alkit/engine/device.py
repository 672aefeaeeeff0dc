"""Put layers on devices, and each rank on a device; inputs go where their layer is.

launch, or torchrun      rank 0    rank 1    rank 2    rank 3
device="cuda", 2 GPUs    cuda:0    cuda:1    cuda:0    cuda:1
"""

import itertools
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from alkit.base import tree

Model = TypeVar("Model", bound=Any)
Names = str | torch.device | Sequence[str | torch.device]


def available() -> list[str]:
    """Name the devices of this machine."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return ["cpu"]
    return ["cpu", *(f"{kind.type}:{i}" for i in range(torch.accelerator.device_count()))]


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices_named(device: Names, *, every: bool = False) -> list[torch.device]:
    """Return the devices of a name, or of several; "auto" is the accelerator, if there is one.

    A kind without a number names the first device of it, or with `every` all.
    """
    here, found = available(), list[str]()
    for name in map(str, device if isinstance(device, (list, tuple)) else [device]):
        kind = here[-1].partition(":")[0] if name == "auto" else name
        same = [each for each in here if each.partition(":")[0] == kind] or [name]
        found += same if every else same[:1]
    for name in found:
        if name not in here:
            raise ValueError(f"unknown device {name!r}: this machine has {', '.join(here)}")
    return [*map(torch.device, found)]


def set_device(model: Model, devices: Sequence[str | torch.device]) -> Model:
    """Put every layer of `model` on a device; inputs follow by themselves, and optimisers' states.

    Args:
        model: a model that can be iterated for its layers (ALModel, BPModel, Pipeline).
        devices: one a layer, in order; one may occur several times: ["cuda:0", "cuda:0", "cpu"].
    Raises:
        ValueError: another number of devices than layers, or a device that this machine lacks.
    """
    layers, placed = list(model), devices_named(devices)
    if len(placed) != len(layers):
        raise ValueError(f"{len(placed)} devices for {len(layers)} layers: give one a layer")
    for layer, device in zip(layers, placed, strict=True):
        layer.to(device)
    if isinstance(head := getattr(model, "head", None), nn.Module):
        head.to(placed[-1])
    for optimizer in model.named_optimizers().values():
        if optimizer is not None:  # torch knows which part of a state stays on the CPU
            optimizer.load_state_dict(optimizer.state_dict())
    return model


def spread(model: Model, device: Names | None) -> Model:
    """Put layers on the devices named, neighbours on one; None leaves them where they are."""
    if device is None:
        return model
    found, layers = devices_named(device), len(list(model))
    if not 1 <= len(found) <= layers:
        raise ValueError(f"{len(found)} devices for {layers} layers: give 1 to {layers}")
    return set_device(model, [found[at * len(found) // layers] for at in range(layers)])


def place_whole(module: nn.Module, device: Names | None) -> None:
    """Put a network that is not cut on one device; None leaves it where it is."""
    found = [] if device is None else devices_named(device)
    if len(found) > 1:
        raise ValueError(f"{len(found)} devices, and a network is on one: give one, or ranks")
    for each in found:
        module.to(each)


def device_of(module: nn.Module) -> torch.device | None:
    """Return where a module is: the device of its first parameter or buffer; None without any."""
    first = next(itertools.chain(module.parameters(), module.buffers()), None)
    return None if first is None else first.device


def place(x: Any, module: nn.Module) -> Any:
    """Move `x` to where `module` is; a tensor that is there already is not copied."""
    device = device_of(module)
    return x if device is None else tree.to_device(x, device)


def beside(loss: Any, module: nn.Module) -> None:
    """Move a loss that is a module to where the last parameter of a network is."""
    if isinstance(loss, nn.Module):
        loss.to([None, *(each.device for each in module.parameters())][-1])


def tensors_at(loss: Any) -> torch.device | None:
    """Return where the tensors of a loss are, such as weights of classes; None if it has none."""
    held = list[Any]()
    while isinstance(loss, partial):
        held, loss = [*held, *loss.keywords.values()], loss.func
    if isinstance(loss, nn.Module):
        held += [*loss.parameters(), *loss.buffers()]
    return next((each.device for each in held if isinstance(each, Tensor)), None)
