"""What a block has learned, seen from outside: probes, similarity, spread, codes, directions.

Features are what blocks put out, pooled to a row a sample as bridges see them. N samples, D
features, C classes, K width of a code.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from alkit.al.backprop import BPModel
from alkit.al.bridges import pool
from alkit.al.model import ALModel
from alkit.data.parts import Part
from alkit.engine.modes import evaluating
from studies.ladder.models import DeepSupervision

PENALTIES = (0.01, 1.0, 100.0)  # inverse strengths of the probe's ridge, chosen on validation


def bodies(model: ALModel | BPModel) -> list[nn.Module]:
    """Return the blocks f of a model of the label ladder, without heads and bridges."""
    if isinstance(model, ALModel):
        return [layer.enc.f for layer in model]
    blocks = list(model)
    return [enc.f for enc in blocks] if isinstance(model, DeepSupervision) else blocks[:-1]


@torch.no_grad()
def features(blocks: Sequence[nn.Module], part: Part, batch_size: int = 512) -> list[Tensor]:
    """Return what every block puts out over a part, pooled, float (N, D) each, in its order."""
    found: list[list[Tensor]] = [[] for _ in blocks]
    held = nn.ModuleList(blocks)
    with evaluating(held):
        for x, _ in part.batches(batch_size, shuffle=False):
            for block, rows in zip(blocks, found, strict=True):
                x = block(x)
                rows.append(pool(x))
    return [torch.cat(rows) for rows in found]


def probe(parts: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Return the test accuracy of a logistic regression on frozen features, in percent.

    Args:
        parts: (features (N, D), classes (N,)) to train on, to choose the penalty with, to test on.
    """
    (x, y), (validation, classes), (test, wanted) = parts
    mean, spread = x.mean(0), x.std(0).clamp(min=1e-6)
    scaled = [((each - mean) / spread).numpy() for each in (x, validation, test)]
    fits = [
        LogisticRegression(C=penalty, solver="newton-cholesky").fit(scaled[0], y.numpy())
        for penalty in PENALTIES
    ]
    best = max(fits, key=lambda fit: fit.score(scaled[1], classes.numpy()))
    return 100 * float(best.score(scaled[2], wanted.numpy()))


def cka(a: Tensor, b: Tensor) -> float:
    """Return the linear centred kernel alignment of two sets of features of the same samples.

    From 0 to 1; 1 if one is the other, turned, shifted or scaled as a whole.

    Args:
        a, b: (N, D) and (N, D').

    Source: Kornblith et al., 2019.
    """
    a, b = (each.double() - each.double().mean(0) for each in (a, b))
    along = torch.linalg.norm(b.T @ a) ** 2
    return float(along / (torch.linalg.norm(a.T @ a) * torch.linalg.norm(b.T @ b)))


def class_distance_ratio(rows: Tensor, classes: Tensor) -> float:
    """Return the mean distance to the own class's centre over that between centres.

    Small where classes are tight and far apart.

    Args:
        rows: (N, D).
        classes: (N,).
    """
    centres = _centres(rows, classes)
    _, index = classes.unique(return_inverse=True)
    within = (rows - centres[index]).norm(dim=1).mean()
    return float(within / F.pdist(centres).mean())


def between_classes(rows: Tensor, classes: Tensor) -> Tensor:
    """Return the distances between all pairs of classes' centres, (C (C - 1) / 2,)."""
    return F.pdist(_centres(rows, classes))


def effective_rank(rows: Tensor) -> float:
    """Return how many directions rows (C, K) use: exp of the entropy of their singular values."""
    shares = torch.linalg.svdvals(rows.double())
    shares = shares / shares.sum()
    return float(torch.exp(torch.special.entr(shares).sum()))


def largest_cosine(rows: Tensor) -> float:
    """Return the largest cosine between two rows of (C, K): 1 where two are one direction."""
    unit = F.normalize(rows, dim=1)
    return float((unit @ unit.T)[~torch.eye(len(unit), dtype=torch.bool)].max())


def same_order(a: Tensor, b: Tensor) -> float:
    """Return the correlation of two lists of distances; NaN where one is constant.

    Over all pairs of classes it is Mantel's statistic: 0 on average if codes can't know which
    classes look alike.
    """
    a, b = (each.double() - each.double().mean() for each in (a, b))
    return float(a @ b / (a.norm() * b.norm()))


def alignment(model: ALModel, x: Any, y: Tensor) -> list[float]:
    """Return how far each block's own gradient points where backprop's would, a cosine a block.

    Backprop's is that of the last layer's associated loss, through all blocks, on the same batch.
    The model is left as it is.
    """
    own = copy.deepcopy(model).train()
    code, s, local = own.label_input(y), x, []
    for layer in own:
        s, code = layer(s, code)
        assert layer.losses is not None
        local.append(_gradient(layer.losses[0], [layer.enc.f])[0])
    for layer in own:
        x = layer.enc.f(x)
    last = own[-1].enc
    true = _gradient(last.loss(last.b(x), code), bodies(own))
    cosine = F.cosine_similarity
    return [float(cosine(one, other, dim=0)) for one, other in zip(local, true, strict=True)]


def _gradient(loss: Tensor, modules: Sequence[nn.Module]) -> list[Tensor]:
    """Return the gradient of a loss for each module's parameters, as one vector a module."""
    owned = [list(module.parameters()) for module in modules]
    found = iter(torch.autograd.grad(loss, [p for own in owned for p in own]))
    return [torch.cat([next(found).flatten() for _ in own]) for own in owned]


def _centres(rows: Tensor, classes: Tensor) -> Tensor:
    """Return the mean of each class's rows, (C, D)."""
    return torch.stack([rows[classes == each].mean(0) for each in classes.unique()])
