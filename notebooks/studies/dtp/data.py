"""Pictures as the presets want them: another scale, another side, another protocol.

protocol="validation"   a share of the training images is held out; the test part is for the end
protocol="original"     trains on all of them, and looks at the test images after each epoch
"""

from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import avg_pool2d

from alkit.data.datasets import load
from alkit.data.parts import DataSet, Part

Scale = tuple[tuple[float, ...], tuple[float, ...]]

# mean and standard deviation; "cifar10_3xstd" is what the first runs of the original had
NORMALISATIONS: dict[str, Scale] = {
    "cifar10": ((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)),
    "cifar10_3xstd": ((0.4914, 0.4822, 0.4465), (3 * 0.2023, 3 * 0.1994, 3 * 0.2010)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5,), (0.5,)),
}
PROTOCOLS = ("validation", "original")


def pictures(
    name: str,
    *,
    normalisation: str = "",
    side: int | None = None,
    protocol: str = "validation",
    train: int | None = None,
    validation: int | None = None,
    test: int | None = None,
    seed: int = 0,
) -> DataSet:
    """Return a data set of pictures.

    Args:
        normalisation: of `NORMALISATIONS`; none: the set's own.
        side: means over squares make pictures so small; digits are stretched to it.
        train, validation, test: samples to keep, as many of each class; None for all.
        seed: of what is held out and kept.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol is {protocol!r}: give {', '.join(PROTOCOLS)}")
    if normalisation and normalisation not in NORMALISATIONS:
        raise ValueError(
            f"normalisation is {normalisation!r}: give {', '.join(NORMALISATIONS)}, or none"
        )
    options: dict[str, Any] = {"size": side} if name == "digits" and side else {}
    data = load(name, seed=seed, **options)
    if protocol == "original":
        parts = data.train, data.validation
        x, y = (torch.cat([getattr(part, field) for part in parts]) for field in ("x", "y"))
        data = replace(data, train=replace(data.train, x=x, y=y), validation=data.test)
        validation = test
    data = data.subset(train=train, validation=validation, test=test, seed=seed)
    names = "train", "validation", "test"
    made: dict[str, Any] = {n: _made(getattr(data, n), normalisation, side) for n in names}
    return replace(data, **made)


def _made(part: Part, normalisation: str, side: int | None) -> Part:
    if normalisation:
        if not part.is_bytes:
            raise ValueError(
                f"normalisation is {normalisation!r}: these pictures have none, leave it out"
            )
        mean, std = NORMALISATIONS[normalisation]
        part = replace(part, mean=mean, std=std)
    own = part.x.shape[2]
    if side is None or side == own:
        return part
    if own % side:
        raise ValueError(f"side is {side}: the pictures have {own}, which it must divide")
    x = part.x
    if part.is_bytes:
        mean_C11, std_C11 = (torch.tensor(s)[:, None, None] for s in (part.mean, part.std))
        x = (x.float() / 255 - mean_C11) / std_C11
    return replace(part, x=avg_pool2d(x, own // side), mean=None, std=None)
