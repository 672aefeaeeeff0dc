"""How the transformers here are fine-tuned: what they begin with, and by which rates.

A file of weights holds the embedding and the layers of a network, never a head: that is a task's.
"""

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch.optim.lr_scheduler import LambdaLR

import alkit
from alkit.base.paths import root
from alkit.elastic.network import Network

RANDOM = "random"
WARMUP = 0.06  # share of the steps in which the rate rises
OPTIMIZERS = {
    "adamw": partial(torch.optim.AdamW, weight_decay=0.0, fused=True),
    "sgd": partial(torch.optim.SGD, momentum=0.9),
}


def factor(step: int, steps: int) -> float:
    """Return what is left of the rate at a step, counted from 0: up, and down to 0 as a cosine."""
    rising, done = WARMUP * steps, step + 1
    if done < rising:
        return done / rising
    return (1 + math.cos(math.pi * min(1.0, (done - rising) / max(1, steps - rising)))) / 2


def recipe(lr: float, samples: int, epochs: int, batch: int, name: str = "adamw") -> dict[str, Any]:
    """Return keywords of `alkit.fit`: epochs, batches, optimiser, rates, the clip of elastic.

    Args:
        lr: at the top.
        samples: of an epoch.
        name: of OPTIMIZERS.
    """
    steps = epochs * math.ceil(samples / batch)
    return {
        "epochs": epochs,
        "batch_size": batch,
        "optimizer": OPTIMIZERS[name],
        "lr": lr,
        "scheduler": alkit.each_batch(partial(LambdaLR, lr_lambda=partial(factor, steps=steps))),
        "clip": 1.0,
    }


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
