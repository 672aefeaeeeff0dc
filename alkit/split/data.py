"""The samples of a configuration: every party reads its own copy of the set and takes its share.

Labels are read by all, for shares depend on them; images only by those who need them.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn

from alkit import datasets
from alkit.layers import evaluating
from alkit.parts import DataSet, Part
from alkit.rng import generator_for
from alkit.split.config import Config, ConfigError
from alkit.split.networks import build
from alkit.split.shares import partition

__all__ = ["evaluator", "network", "normal_of", "part_of", "shares"]

EVALUATED = 500  # samples at a time
WIDE = ("VGG11", "VGG16", "ResNet18", "ResNet50", "MobileNetSmall", "MobileNetLarge")


@lru_cache(maxsize=2)
def _loaded(data: str, model: str) -> DataSet:
    if data == "mnist":
        return datasets.load("mnist", side=32 if model in WIDE else 28)
    if data == "digits":
        return datasets.load("digits", size=32 if model in WIDE else 8)
    return datasets.load(data)


def shares(config: Config) -> list[Tensor]:
    """Return the rows of the training part that each device has.

    Raises:
        ConfigError: more samples are asked for than there are.
    """
    part = _loaded(config.data, config.model).train
    own = [config.of(at).data_size for at in range(config.devices)]
    sizes = None
    if any(own):
        sizes = [size or len(part) // config.devices for size in own]
    options = {"alpha": config.alpha, "shards": config.shards, "seed": config.seed}
    try:
        return partition(part.y, config.devices, config.partition, sizes=sizes, **options)
    except ValueError as error:
        raise ConfigError(f"{config.data}: {error}") from error


def part_of(config: Config, index: int) -> Part:
    """Return the samples of a device."""
    return _loaded(config.data, config.model).train.take(shares(config)[index])


def network(config: Config) -> list[nn.Module]:
    """Return the units with their initial weights."""
    found = _loaded(config.data, config.model)
    _, channels, side, _ = found.test.x.shape
    options = {"channels": channels, "side": side, "norm": config.norm, "seed": config.seed}
    return build(config.model, found.num_classes, **options)


def normal_of(part: Part) -> tuple[Tensor, Tensor] | None:
    """Return mean and standard deviation to take off, of images of bytes."""
    if part.mean is None or part.std is None:
        return None
    return torch.tensor(part.mean), torch.tensor(part.std)


def evaluator(config: Config, which: str = "test") -> Callable[[dict[str, Tensor]], float]:
    """Return what gives the accuracy of a network's state, from 0 to 1.

    Args:
        which: "test", of `test_size` samples drawn by the seed, or "validation", held out of
            training.
    """
    found = _loaded(config.data, config.model)
    part = found.test if which == "test" else found.validation
    if which == "test" and 0 < config.test_size < len(part):
        draw = generator_for(config.seed, "test")
        part = part.take(torch.randperm(len(part), generator=draw)[: config.test_size])
    net = nn.Sequential(*network(config))

    @torch.no_grad()
    def accuracy(state: dict[str, Tensor]) -> float:
        net.load_state_dict(state)
        right = 0
        with evaluating(net):
            for x, y in part.batches(EVALUATED, shuffle=False):
                right += int((net(x).argmax(1) == y.argmax(1)).sum())
        return right / len(part)

    return accuracy
