"""How the transformers here are fine-tuned: AdamW or SGD, a warm-up, a cosine, clipping."""

import math
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

import alkit

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
