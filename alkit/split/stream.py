"""The samples of a device, and its row of batches, each a function of (seed, device, step).

Steps count on over epochs. Rounds are ranges of steps, and the server averages between them:

    aggregate_every -1    round 0 = epoch 0 | round 1 = epoch 1 | ...
    aggregate_every 10    steps 0..9 | 10..19 | ...; a device with fewer steps in all stops then
    aggregate_every 0     all steps: averaged once, at the end
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from alkit.base.seeds import generator_for, seed_for
from alkit.data.parts import Part
from alkit.split.schedule import split_sizes
from alkit.split.settings import Settings


class MicroBatch(NamedTuple):
    """A part of a batch: its inputs (n, ...), labels (n) and share of the samples of the batch."""

    x: Tensor
    y: Tensor
    share: float


def deal(samples: int, devices: int, size: int = 0, *, seed: int = 1994) -> list[Tensor]:
    """Return for every device the indices of `size` samples, drawn at random; 0 shares out all."""
    if devices * size > samples:
        raise ValueError(f"{size} samples for each of {devices} devices: there are {samples}")
    drawn = np.random.default_rng(seed_for(seed, "partition")).permutation(samples)
    parts = np.array_split(drawn[: devices * size or samples], devices)
    return [torch.from_numpy(np.sort(part)) for part in parts]


class Stream:
    """The batches of one device, by its number; images become those of `part`."""

    def __init__(
        self, x: Tensor, y: Tensor, settings: Settings, device: int, part: Part | None = None
    ) -> None:
        if len(x) < settings.least:
            raise ValueError(f"device {device} has {len(x)} samples: give {settings.least} or more")
        if settings.drop_last and len(x) < settings.batch:
            said = f"device {device} has {len(x)} samples, no batch of {settings.batch}"
            raise ValueError(f"{said}, and drop_last leaves smaller ones out: give fewer workers")
        self.x, self.y = x.cpu(), y.cpu()  # a batch goes to where the head is
        self.settings, self.device, self.part = settings, device, part

    def step(self, step: int, micro: int) -> Iterator[MicroBatch]:
        """Yield the micro-batches of a step."""
        seed, ends = self.settings.seed, _ends(self.settings, len(self.x))
        epoch, at = divmod(step, len(ends) - 1)
        chosen = self._order(epoch)[ends[at] : ends[at + 1]]
        x, y, start = self.x[chosen], self.y[chosen], 0
        if self.part is not None:
            x = self.part.images(x, generator_for(seed, "augment", self.device, step))
        for size in step_sizes(self.settings, len(self.x), step, micro):
            rows = slice(start, start + size)
            yield MicroBatch(x[rows], y[rows], size / len(chosen))
            start += size

    @lru_cache(maxsize=2)  # noqa: B019  (a stream lives as long as its device)
    def _order(self, epoch: int) -> Tensor:
        draw = generator_for(self.settings.seed, "order", self.device, epoch)
        return torch.randperm(len(self.x), generator=draw)


def steps_an_epoch(settings: Settings, samples: int) -> int:
    """Return the iterations that a device needs to see its samples once."""
    return len(_ends(settings, samples)) - 1


def step_sizes(settings: Settings, samples: int, step: int, micro: int) -> list[int]:
    """Return the sizes of the micro-batches of a step, of a device with `samples`."""
    ends = _ends(settings, samples)
    at = step % (len(ends) - 1)
    return split_sizes(ends[at + 1] - ends[at], micro, settings.least)


def round_count(settings: Settings, samples: list[int]) -> int:
    """Return the number of rounds; `samples` of each device."""
    if settings.aggregate_every < 1:
        return settings.epochs if settings.aggregate_every else 1
    totals = (settings.epochs * steps_an_epoch(settings, own) for own in samples)
    return -(-max(totals) // settings.aggregate_every)


def round_steps(settings: Settings, samples: int, number: int) -> range:
    """Return the steps of a device in a round; none if it has done all of its own."""
    an_epoch = steps_an_epoch(settings, samples)
    total = settings.epochs * an_epoch
    length = {-1: an_epoch, 0: total}.get(settings.aggregate_every, settings.aggregate_every)
    return range(min(number * length, total), min((number + 1) * length, total))


@lru_cache(maxsize=64)
def _ends(settings: Settings, samples: int) -> list[int]:
    """Return where batches end in an epoch's order; a rest too small joins the batch before."""
    ends = [*range(0, samples, settings.batch), samples]
    if settings.drop_last and samples % settings.batch:
        del ends[-1]
    elif len(ends) > 2 and ends[-1] - ends[-2] < settings.least:
        del ends[-2]
    return ends
