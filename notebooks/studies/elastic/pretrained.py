"""Weights to begin fine-tuning with: kept as safetensors, read with a word on what was read.

A file holds the embedding and the layers of a network, never a head: that belongs to a task.
"""

import json
from pathlib import Path

import safetensors

from alkit.base.paths import root
from alkit.elastic.network import Network

RANDOM = "random"


def begin(network: Network, weights: str | Path = RANDOM) -> str:
    """Put weights into a network, and return a line that says what was read.

    Args:
        weights: "random" to leave the network as it is, or a file of embedding and layers; a
            relative path begins in the checkout.
    """
    if str(weights) == RANDOM:
        return "random weights"
    path = root() / weights  # an absolute path stays as it is
    if not path.exists():
        raise FileNotFoundError(f"no weights at {path}: give a file, or {RANDOM!r}")
    with safetensors.safe_open(path, "pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}
        about = json.loads((file.metadata() or {}).get("about", "{}"))
    own = network.state_dict()
    network.load_state_dict(own | stored)  # other sizes are an error of torch's
    said = ", ".join(f"{key} {value}" for key, value in about.items())
    return f"{len(stored)} of {len(own)} tensors from {path.name} ({said})"
