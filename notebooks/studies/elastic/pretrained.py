"""Weights to begin fine-tuning with: kept as safetensors, read with a word on what was read.

A file holds the embedding and the layers of a network, never a head: that belongs to a task.
"""

import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from alkit.data.files import replacing
from alkit.data.paths import root
from alkit.elastic.network import Network

RANDOM = "random"


def save_body(network: Network, path: str | Path, **about: Any) -> None:
    """Write embedding and layers.

    Args:
        about: what a reader may want to know: data, samples, accuracy, ...; plain values.
    """
    count = 1 + network.units_a_layer * network.layers
    state = {
        f"units.{number}.{name}": tensor.contiguous()
        for number, unit in enumerate(network.units[:count])
        for name, tensor in unit.state_dict().items()
    }
    with replacing(path) as partial:
        safetensors.torch.save_file(state, partial, {"about": json.dumps(about)})


def begin(network: Network, weights: str | Path = RANDOM) -> str:
    """Put weights into a network, and return a line that says what was read.

    Args:
        weights: "random" to leave the network as it is, or a file that `save_body` wrote; a
            relative path begins in the checkout.
    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, or of another network; names the first tensor that does not fit.
    """
    if str(weights) == RANDOM:
        return "random weights"
    path = root() / weights  # an absolute path stays as it is
    if not path.exists():
        raise FileNotFoundError(f"no weights at {path}: give a file, or {RANDOM!r}")
    try:
        with safetensors.safe_open(path, "pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}
            about = json.loads((file.metadata() or {}).get("about", "{}"))
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    own = network.state_dict()
    with torch.no_grad():
        for name, tensor in stored.items():
            if name not in own or own[name].shape != tensor.shape:
                there = tuple(own[name].shape) if name in own else "not there"
                raise ValueError(
                    f"{path} has {name} of {tuple(tensor.shape)}; in this network it is {there}:"
                    " give the sizes that the weights were trained with"
                )
            own[name].copy_(tensor)
    said = ", ".join(f"{key} {value}" for key, value in about.items())
    return f"{len(stored)} of {len(own)} tensors from {path.name} ({said})"
