"""Who has which training samples: the ways to deal them, as functions of a seed.

iid        equal shares of shuffled samples
dirichlet  each class is shared out by a draw from Dirichlet(alpha): small alpha, few classes
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from alkit.data.seeds import seed_for

STRATEGIES = ("iid", "dirichlet")


def deal(
    y: Tensor,
    devices: int,
    strategy: str = "iid",
    *,
    sizes: Sequence[int] | None = None,
    alpha: float = 0.5,
    least: int = 2,
    seed: int = 1994,
) -> list[Tensor]:
    """Return for every device the indices of its samples; no sample has two owners.

    Args:
        y: labels (N).
        sizes: samples of each device, for "iid" only; default equal shares of all, up to one.
        alpha: of the Dirichlet distribution.
        least: samples that each device must get; a draw that gives fewer is drawn again.
    Raises:
        ValueError: an unknown strategy, or more devices or samples asked for than there are.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy is {strategy!r}: give {', '.join(STRATEGIES)}")
    if devices < 1 or devices * least > len(y):
        raise ValueError(f"{len(y)} samples for {devices} devices of at least {least}: too few")
    draw = np.random.default_rng(seed_for(seed, "partition"))
    labels = y.cpu().numpy()
    if strategy == "iid":
        parts = _of_sizes(draw, len(labels), devices, sizes)
    elif sizes is not None:
        raise ValueError(f"sizes are for strategy 'iid'; {strategy!r} draws its own")
    else:
        parts = _drawn(draw, labels, devices, alpha, least)
    return [torch.from_numpy(np.sort(part)) for part in parts]


def _of_sizes(
    draw: np.random.Generator, samples: int, devices: int, sizes: Sequence[int] | None
) -> list[np.ndarray]:
    each, rest = divmod(samples, devices)
    wanted = list(sizes) if sizes is not None else [each + (at < rest) for at in range(devices)]
    if len(wanted) != devices or min(wanted) < 1 or sum(wanted) > samples:
        raise ValueError(
            f"sizes {wanted} for {devices} devices and {samples} samples: one each, not more in all"
        )
    return np.split(draw.permutation(samples)[: sum(wanted)], np.cumsum(wanted)[:-1])


def _drawn(
    draw: np.random.Generator, labels: np.ndarray, devices: int, alpha: float, least: int
) -> list[np.ndarray]:
    if alpha <= 0:
        raise ValueError(f"alpha is {alpha}: it must be above 0")
    for _ in range(1000):
        parts: list[list[np.ndarray]] = [[] for _ in range(devices)]
        for label in np.unique(labels):
            own = draw.permutation(np.flatnonzero(labels == label))
            ends = np.cumsum(draw.dirichlet([alpha] * devices))[:-1] * len(own)
            for part, piece in zip(parts, np.split(own, ends.astype(int)), strict=True):
                part.append(piece)
        joined = [np.concatenate(part) for part in parts]
        if min(map(len, joined)) >= least:
            return joined
    raise ValueError(
        f"no draw of 1000 gave every device {least} samples: raise alpha ({alpha}), lower least"
    )
