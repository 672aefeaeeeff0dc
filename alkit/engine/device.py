"""Which layer is on which device, and a device a rank; inputs go where their layer is.

launch, or torchrun      rank 0    rank 1    rank 2    rank 3
device="cuda", 2 GPUs    cuda:0    cuda:1    cuda:0    cuda:1
"""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from alkit.base import tree


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


def own_device(device: Names) -> torch.device:
    """Return this rank's device: one of those named, which the ranks of a machine take in turn.

    A kind without a number, and "auto", name all of that kind.

    Raises:
        ValueError: a device that this machine lacks.
    """
    named = _each(device)
    return named[int(os.environ.get("LOCAL_RANK", "0")) % len(named)]


def place_whole(module: nn.Module, device: Names | None, *, on_ranks: bool) -> None:
    """Put a network that is not cut on one device, a rank's own; None leaves it where it is.

    Raises:
        ValueError: several devices for one process, or one that this machine lacks.
    """
    if device is None:
        return
    found = [own_device(device)] if on_ranks else devices_named(device)
    if len(found) > 1:
        raise ValueError(f"{len(found)} devices, and a network is on one: give one, or ranks")
    module.to(found[0])


def backend_for(device: Names | None, ranks: int) -> str:
    """Return the backend that joins ranks: gloo, and for device tensors NCCL or their own one.

    Only collectives of device tensors go that way, as it has no tags. It takes a device a rank:
    where ranks share one, gloo does all.
    """
    named = set(_each(device)[:ranks]) if device is not None else set()
    kind = next(iter(named), torch.device("cpu")).type
    if len(named) < ranks or {each.type for each in named} != {kind}:
        return "gloo"
    with suppress(ValueError):  # of a kind that torch knows none for
        own = torch.distributed.get_default_backend_for_device(kind)
        return "gloo" if own == "gloo" else f"cpu:gloo,{kind}:{own}"
    return "gloo"


def _each(device: Names) -> list[torch.device]:
    """Return the devices of names, all of a kind for a kind without a number."""
    here, found = available(), list[str | torch.device]()
    for name in map(str, [device] if isinstance(device, (str, torch.device)) else device):
        kind = here[-1].partition(":")[0] if name == "auto" else name
        found += [each for each in here if each.partition(":")[0] == kind] or [name]
    return devices_named(found)
