"""Which layer is on which device."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from alkit.data import tree

__all__ = ["cores", "place", "set_device", "synchronize"]


class _Layered(Protocol):
    devices: list[torch.device] | None

    def __iter__(self) -> Iterator[nn.Module]: ...


Model = TypeVar("Model", bound=_Layered)


def set_device(model: Model, devices: Sequence[str | torch.device]) -> Model:
    """Put every layer of `model` on a device of its own choice; inputs follow by themselves.

    Optimiser states that exist move too, so a trained model may be placed anew.

    Args:
        model: a model that can be iterated for its layers (ALModel, BPModel).
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
        _move_states(layer)
    model.devices = placed
    return model


def place(x: Any, devices: Sequence[torch.device] | None, index: int) -> Any:
    """Move `x` to the device of layer `index`, if the model has been placed."""
    return x if devices is None else tree.to_device(x, devices[index])


def synchronize(devices: Sequence[torch.device] | None) -> None:
    """Wait until every accelerator among `devices` has finished its work."""
    for device in {d for d in devices or () if d.type != "cpu"}:
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


def _move_states(layer: nn.Module) -> None:
    """Let optimiser states follow their parameters; torch knows which part of a state stays."""
    for optimizer in getattr(layer, "_optimizers", {}).values():
        if optimizer is not None:
            optimizer.load_state_dict(optimizer.state_dict())
