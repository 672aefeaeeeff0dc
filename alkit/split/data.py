"""The samples of a configuration: every party reads its own copy of the set and takes its own.

Labels are read by all, for who has what depends on them; images only by those who need them.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.data import datasets
from alkit.data.parts import DataSet, Part
from alkit.data.seeds import generator_for
from alkit.engine.device import devices_named, place
from alkit.engine.modes import evaluating
from alkit.split.check import Check
from alkit.split.config import Config, ConfigError
from alkit.split.deal import deal
from alkit.split.networks import build

EVALUATED = 500  # samples at a time
WIDE = ("VGG11", "VGG16", "ResNet18", "ResNet50", "MobileNetSmall", "MobileNetLarge")


def _loaded(config: Config) -> DataSet:
    return _named(config.data, config.model)


@lru_cache(maxsize=2)
def _named(data: str, model: str) -> DataSet:
    if data == "mnist":
        return datasets.load("mnist", side=32 if model in WIDE else 28)
    if data == "digits":
        return datasets.load("digits", size=32 if model in WIDE else 8)
    return datasets.load(data)


def dealt(config: Config) -> list[Tensor]:
    """Return the rows of the training part that each device has.

    Raises:
        ConfigError: more samples are asked for than there are.
    """
    part = _loaded(config).train
    sizes = [config.data_size] * config.devices if config.data_size else None
    own_deal = partial(deal, alpha=config.alpha, seed=config.seed)
    try:
        return own_deal(part.y, config.devices, config.partition, sizes=sizes)
    except ValueError as error:
        raise ConfigError(f"{config.data}: {error}") from error


def part_of(config: Config, index: int) -> Part:
    """Return the samples of a device."""
    return _loaded(config).train.take(dealt(config)[index])


def counts(config: Config) -> list[int]:
    """Return how many samples each device has."""
    return [len(rows) for rows in dealt(config)]


def example(config: Config) -> Tensor:
    """Return one sample (1, ...) as the network takes it, but for its scale."""
    return _loaded(config).test.x[:1].float()


def network(config: Config, on: str | None = None) -> list[nn.Module]:
    """Return the units with their initial weights, on a device of this machine or the CPU."""
    found = _loaded(config)
    _, channels, side, _ = found.test.x.shape
    shaped = partial(build, channels=channels, side=side)
    units = shaped(config.model, found.num_classes, norm=config.norm, seed=config.seed)
    return [unit if on is None else unit.to(devices_named(on)[0]) for unit in units]


def message_limit(config: Config) -> int:
    """Return the bytes that no message of this run exceeds: all weights, or a batch's activations,
    half as much again, and 16 MiB for the log of a round."""
    check = Check(network(config), example(config))
    weights = sum(math.prod(shape) * dtype.itemsize for shape, dtype in check.state.values())
    widest = max(math.prod(shape) for shape, _ in check.features)
    return int(1.5 * max(weights, 4 * widest * config.batch)) + (1 << 24)


def normal_of(part: Part) -> tuple[Tensor, Tensor] | None:
    """Return mean and standard deviation to take off, of images of bytes."""
    if part.mean is None or part.std is None:
        return None
    return torch.tensor(part.mean), torch.tensor(part.std)


def evaluator(
    config: Config, on: str | None = None
) -> Callable[[dict[str, Tensor]], dict[str, float]]:
    """Return what gives the scores of a network's state, which it computes on a device.

    "accuracy" (0 to 1) on `test_size` samples of the test part, drawn by the seed, if `test` is
    set; "val_loss" and "val_acc" on samples held out of training, if `validate` is.
    """
    found = _loaded(config)
    test = found.test
    if 0 < config.test_size < len(test):
        draw = generator_for(config.seed, "test")
        test = test.take(torch.randperm(len(test), generator=draw)[: config.test_size])
    net = nn.Sequential(*network(config, on))

    def scores(state: dict[str, Tensor]) -> dict[str, float]:
        net.load_state_dict(state)
        made = {"accuracy": _score(net, test)[1]} if config.test else {}
        if config.validate:
            made["val_loss"], made["val_acc"] = _score(net, found.validation)
        return made

    return scores


@torch.no_grad()
def _score(net: nn.Module, part: Part) -> tuple[float, float]:
    """Return mean loss and accuracy."""
    loss, right = 0.0, 0
    with evaluating(net):
        for x, y in part.batches(EVALUATED, shuffle=False):
            x, y = place((x, y), net)
            out = net(x)
            loss += float(F.cross_entropy(out, y, reduction="sum"))
            right += int((out.argmax(1) == y).sum())
    return loss / len(part), right / len(part)
