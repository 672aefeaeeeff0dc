"""Who has which training samples: the ways to deal them, as functions of a seed.

iid        equal shares of shuffled samples
dirichlet  each class is shared out by a draw from Dirichlet(alpha): small alpha, few classes
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from alkit.base.seeds import seed_for

STRATEGIES = ("iid", "dirichlet")
DRAWS = 1000  # of which one must give every device enough


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
        ValueError: more devices or samples asked for than there are.
    """
    draw, labels = np.random.default_rng(seed_for(seed, "partition")), y.cpu().numpy()
    if devices * least > len(y):
        raise ValueError(f"{len(y)} samples for {devices} devices of at least {least}: too few")
    if strategy == "dirichlet" and sizes is not None:
        raise ValueError("sizes are for 'iid': 'dirichlet' draws its own")
    if strategy == "dirichlet":
        parts = _drawn(draw, labels, devices, alpha, least)
    else:
        each, rest = divmod(len(y), devices)
        wanted = sizes or [each + (at < rest) for at in range(devices)]
        if len(wanted) != devices or sum(wanted) > len(y):
            raise ValueError(f"sizes {[*wanted]}: give one a device, not more than {len(y)} in all")
        parts = np.split(draw.permutation(len(y))[: sum(wanted)], np.cumsum(wanted)[:-1])
    return [torch.from_numpy(np.sort(part)) for part in parts]


def _drawn(
    draw: np.random.Generator, labels: np.ndarray, devices: int, alpha: float, least: int
) -> list[np.ndarray]:
    for _ in range(DRAWS):
        parts: list[list[np.ndarray]] = [[] for _ in range(devices)]
        for label in np.unique(labels):
            own = draw.permutation(np.flatnonzero(labels == label))
            ends = np.cumsum(draw.dirichlet([alpha] * devices))[:-1] * len(own)
            for part, piece in zip(parts, np.split(own, ends.astype(int)), strict=True):
                part.append(piece)
        joined = [np.concatenate(part) for part in parts]
        if min(map(len, joined)) >= least:
            return joined
    raise ValueError(f"no draw gave every device {least} samples: raise alpha ({alpha})")
