"""What a cut tells of the samples: the distance correlation of what is sent with the inputs.

0 if they are independent, 1 if one is the other turned, moved or scaled (Székely et al. 2007). It
needs no attack, and is no bound on one: it says by how much two samples that are alike stay alike.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from alkit.engine.modes import evaluating


def distance_correlation(x: Tensor, z: Tensor) -> float:
    """Return the distance correlation of paired samples x (N, ...) and z (N, ...), 0 to 1."""
    one, other = _centred(x), _centred(z)
    shared, own = (one * other).mean(), (one**2).mean() * (other**2).mean()
    return float((shared.clamp(min=0) / own.sqrt()).sqrt()) if own > 0 else 0.0


@torch.no_grad()
def leaks(units: Sequence[nn.Module], x: Tensor) -> list[float]:
    """Return the distance correlation with the inputs x (N, ...) of what each unit hands on.

    In evaluation mode, in which nothing of the units changes.
    """
    found, sent = list[float](), x
    with evaluating(nn.ModuleList(units)):
        for unit in units:
            sent = unit(sent)
            found.append(distance_correlation(x, sent))
    return found


def _centred(x: Tensor) -> Tensor:
    """Return all distances of samples, less the means of rows and columns."""
    rows = x.flatten(1).double()
    apart = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    return apart - apart.mean(0) - apart.mean(1, keepdim=True) + apart.mean()
