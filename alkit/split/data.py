"""The network and the samples that a file names: every party reads its own copy of the set."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from alkit.base.seeds import generator_for
from alkit.data import datasets
from alkit.data.parts import DataSet
from alkit.split.networks import build
from alkit.split.settings import Config

WIDE = ("VGG11", "VGG16", "ResNet18", "ResNet50", "MobileNetSmall", "MobileNetLarge")


def loaded(config: Config) -> DataSet:
    """Return the set, with as many test samples as are to count, drawn by the seed."""
    wide = config.model in WIDE
    sides: dict[str, Any] = {
        "mnist": {"side": 32 if wide else 28},
        "digits": {"size": 32 if wide else 8},
    }
    found = datasets.load(config.data, **sides.get(config.data, {}))
    if 0 < config.test_size < len(found.test):
        draw = generator_for(config.seed, "test")
        rows = torch.randperm(len(found.test), generator=draw)[: config.test_size]
        found = replace(found, test=found.test.take(rows))
    return found


def network(config: Config, data: DataSet) -> list[nn.Module]:
    """Return the units with their initial weights, the same for all parties."""
    _, channels, side, _ = data.test.x.shape
    options: dict[str, Any] = {
        "channels": channels,
        "side": side,
        "norm": config.norm,
        "seed": config.seed,
    }
    return build(config.model, data.num_classes, **options)
