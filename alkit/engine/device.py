"""Which layer is on which device; inputs go where the layer is that takes them."""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from alkit.data import tree


class _Layered(Protocol):
    def __iter__(self) -> Iterator[nn.Module]: ...
    def named_optimizers(self) -> Mapping[str, torch.optim.Optimizer | None]: ...


Model = TypeVar("Model", bound=_Layered)
Names = str | torch.device | Sequence[str | torch.device]


def set_device(model: Model, devices: Sequence[str | torch.device]) -> Model:
    """Put every layer of `model` on a device of its own choice; inputs follow by themselves.

    Optimiser states that exist move too, so a trained model may be placed anew. For one device,
    `model.to(device)` does the same before training.

    Args:
        model: a model that can be iterated for its layers (ALModel, BPModel, Pipeline).
        devices: one a layer, in order; one may occur several times: ["cuda:0", "cuda:0", "cpu"].
    Returns:
        The model.
    Raises:
        ValueError: another number of devices than layers, or a device that this machine lacks.
    """
    layers = list(model)
    if isinstance(devices, (str, torch.device)) or len(devices) != len(layers):
        given = [devices] if isinstance(devices, (str, torch.device)) else list(devices)
        raise ValueError(
            f"{len(given)} devices {[str(d) for d in given]} for {len(layers)} layers:"
            " give one a layer, in order"
        )
    placed = [_device(name) for name in devices]
    for layer, device in zip(layers, placed, strict=True):
        layer.to(device)
    if isinstance(head := getattr(model, "head", None), nn.Module):
        head.to(placed[-1])
    for optimizer in model.named_optimizers().values():
        if optimizer is not None:  # torch knows which part of a state stays on the CPU
            optimizer.load_state_dict(optimizer.state_dict())
    return model


def tensors_at(loss: Any) -> torch.device | None:
    """Return where the tensors of a loss are, such as classes' weights; None if it has none."""
    held: dict[str, Any] = {}
    while isinstance(loss, partial):
        held, loss = held | loss.keywords, loss.func
    if isinstance(loss, nn.Module):
        held |= loss.state_dict()
        held |= {name: each for name, each in loss.named_buffers()}
    return next((each.device for each in held.values() if isinstance(each, Tensor)), None)


def spread(model: Model, device: Names | None) -> Model:
    """Put a model where a user wants it: on one device, or its layers in turn on several.

    Args:
        device: a name; several, which neighbouring layers share as evenly as can be; "auto" for
            this machine's accelerator, or the CPU if there is none; None leaves it where it is.
    Raises:
        ValueError: more devices than layers, or one that this machine lacks.
    """
    if device is None:
        return model
    found, layers = devices_named(device), len(list(model))
    if not 1 <= len(found) <= layers:
        raise ValueError(f"{len(found)} devices for {layers} layers: give 1 to {layers}")
    return set_device(model, [found[at * len(found) // layers] for at in range(layers)])


def devices_named(device: Names) -> list[torch.device]:
    """Return the devices of a name, or of several; "auto" is the accelerator, if there is one.

    Raises:
        ValueError: a device that this machine lacks.
    """
    names = [device] if isinstance(device, (str, int, torch.device)) else list(device)
    return [_device(available()[:2][-1] if name == "auto" else name) for name in names]


def device_of(module: nn.Module) -> torch.device | None:
    """Return where a module is: the device of its first parameter or buffer; None without any."""
    first = next(itertools.chain(module.parameters(), module.buffers()), None)
    return None if first is None else first.device


def place(x: Any, module: nn.Module) -> Any:
    """Move `x` to where `module` is; what is there already is not copied."""
    device = device_of(module)
    return x if device is None else tree.to_device(x, device)


def beside(loss: Any, module: nn.Module) -> None:
    """Move a loss that is a module to where the last parameter of a network is."""
    if isinstance(loss, nn.Module):
        loss.to([None, *(each.device for each in module.parameters())][-1])


def synchronize(model: nn.Module) -> None:
    """Wait until every accelerator that holds a part of `model` has finished its work."""
    for device in {p.device for p in model.parameters()}:
        wait_for(device)


def wait_for(device: torch.device) -> None:
    """Wait until a device has finished its work; the CPU has when a call returns."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available() -> list[str]:
    """Name the devices of this machine."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return ["cpu"]
    return ["cpu", *(f"{kind.type}:{i}" for i in range(torch.accelerator.device_count()))]


def _device(name: str | torch.device) -> torch.device:
    here = available()
    known = {torch.device(n) for n in here} | {torch.device(n.split(":")[0]) for n in here}
    with suppress(RuntimeError, TypeError):  # of a name that says nothing to torch
        if (device := torch.device(name)) in known:
            return device
    raise ValueError(f"unknown device {str(name)!r}: this machine has {', '.join(here)}")
