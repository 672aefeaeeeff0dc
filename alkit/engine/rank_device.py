"""A device a rank, and what joins ranks that have one.

launch, or torchrun      rank 0    rank 1    rank 2    rank 3
device="cuda", 2 GPUs    cuda:0    cuda:1    cuda:0    cuda:1
"""

import os
from contextlib import suppress

import torch
from torch import nn

from alkit.engine.device import Names, available, devices_named


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
    """Return what joins the ranks of a machine: gloo; beside it NCCL, or an accelerator's own.

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
