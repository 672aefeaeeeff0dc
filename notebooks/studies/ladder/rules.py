"""Three published local rules as functions that `alkit.to_local(rule=...)` takes.

predsim        a linear head, and similarities within the batch (Nokland & Eidnes 2019)
dgl            a deep head (Belilovsky et al. 2020)
scpl           contrast within the batch (2026), and a linear head on detached features

A rule is a function of (layer, what its block gives, classes) that returns a head and its loss.
B batch, C classes, D features.
"""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.al.bridges import BearsOne, Norm2d, Pooled, over_all, pool, pool_of
from alkit.al.codes import Codes
from alkit.al.layers import AL
from alkit.al.rules import SMOOTHING, Made, class_scores
from alkit.base import tree

PREDSIM_FEATURES = 2048  # the most that the publication's local classifier sees


def smoothed(scores_BC: Tensor, y: Tensor) -> Tensor:
    """Return the smoothed cross-entropy; y: class numbers or rows of shares (B, C)."""
    return F.cross_entropy(scores_BC, y, label_smoothing=SMOOTHING)


def maps(s: Any) -> Tensor:
    """Return a block's output as it is, without what stands beside it."""
    return next(tree.tensors(s))


class Norm1d(BearsOne, nn.BatchNorm1d):
    """Batch norm of rows (B, D)."""


def _check_pooling(layer: AL, s: Any) -> None:
    """Refuse a block whose features are not averaged over tokens."""
    found = pool_of(cast("nn.Module", layer.enc.f), s)
    if found is not pool:
        masked = "features and what travels with them, which may mark words or padding"
        what = masked if found is over_all else "channels of a sequence"
        raise ValueError(
            f"a block gives {what} {tuple(maps(s).shape)}, and this rule averages features of"
            " tokens: give 'linear', 'cosine' or 'fixed_codes', or end the block in its means"
        )


def predsim(layer: AL, s: Any, classes: int) -> Made:
    """Nokland & Eidnes 2019."""
    _check_pooling(layer, s)
    return PredSimHead(s, classes), PredSim(classes)


def scpl(layer: AL, s: Any, classes: int) -> Made:
    """SCPL, 2026."""
    _check_pooling(layer, s)
    return ScplHead(s, classes), Scpl(classes)


def dgl(layer: AL, s: Any, classes: int) -> Made:
    """Belilovsky et al. 2020; the last block has a smaller head."""
    _check_pooling(layer, s)
    return dgl_head(s, classes, last=layer.is_last), class_scores()


def dgl_head(s: Any, classes: int, *, last: bool) -> nn.Module:
    """Return DGL's MLP-SR head (Belilovsky et al. 2020) for a block's output s.

    Pictures: means over a quarter of the side, three 1 x 1 convolutions, 2 x 2 means, three hidden
    layers; the last block has no convolutions and two. Texts, of which nothing is published: the
    hidden layers on the masked mean.
    """
    x = maps(s)
    body: list[nn.Module] = []
    features, reduce = pool(s).shape[1], pool
    if x.dim() == 4:
        reduce, width = maps, x.shape[1]
        body.append(nn.AdaptiveAvgPool2d(math.ceil(x.shape[2] / 4)))
        for _ in range(0 if last else 3):
            body += [nn.Conv2d(width, width, 1, bias=False), Norm2d(width), nn.ReLU()]
        body += [nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    for _ in range(2 if last else 3):
        linear = nn.Linear(features, features, bias=False)
        body += [linear, Norm1d(features), nn.ReLU()]
    return Pooled(nn.Sequential(*body, nn.Linear(features, classes)), reduce)


def similarity(rows_BD: Tensor) -> Tensor:
    """Return the cosines (B, B) of rows, each centred over its own features."""
    rows = F.normalize(rows_BD - rows_BD.mean(1, keepdim=True), dim=1)
    return rows @ rows.T


class PredSimHead(nn.Module):
    """predsim's two parts (Nokland & Eidnes 2019): s -> (B, C + D), scores beside features.

    Pictures: a linear classifier on means of at most 2048 features; the deviations over positions
    of a 3 x 3 convolution's maps. Texts: both linear, on the masked mean.
    """

    def __init__(self, s: Any, classes: int) -> None:
        super().__init__()
        x = maps(s)
        self.pictures = x.dim() == 4
        if self.pictures:
            side = max(1, min(x.shape[2], math.isqrt(PREDSIM_FEATURES // x.shape[1])))
            self.side, features = side, x.shape[1] * side**2
            self.compare: nn.Module = nn.Conv2d(x.shape[1], x.shape[1], 3, padding=1, bias=False)
        else:
            features = pool(s).shape[1]
            self.compare = nn.Linear(features, features, bias=False)
        self.classify = nn.Linear(features, classes)

    def forward(self, s: Any) -> Tensor:
        """Return scores and features, side by side."""
        if not self.pictures:
            seen = pool(s)
            return torch.cat([self.classify(seen), self.compare(seen)], dim=1)
        seen = F.adaptive_avg_pool2d(maps(s), self.side).flatten(1)
        compared = self.compare(maps(s)).flatten(2)
        spread = compared.std(2) if compared.shape[2] > 1 else compared[:, :, 0]
        return torch.cat([self.classify(seen), spread], dim=1)


class PredSim:
    """0.01 cross-entropy + 0.99 squared error between similarities of features and of labels."""

    takes_codes = True

    def __init__(self, classes: int, share: float = 0.99) -> None:
        self.classes, self.share = classes, share

    def __call__(self, m: Tensor, codes: Codes) -> Tensor:
        """Return the loss of a batch."""
        y = codes.gathered()[:, : self.classes]
        close = F.mse_loss(similarity(m[:, self.classes :]), similarity(y))
        return (1 - self.share) * smoothed(m[:, : self.classes], y) + self.share * close


class ScplHead(nn.Module):
    """SCPL's projection (2026): s -> (B, C + D), scores beside rows of length 1.

    The classifier sees detached features, as the published one on top does; here every block has
    one, so that each is an exit. Pictures: 2 x 2 means instead of the whole flattened picture.
    """

    def __init__(self, s: Any, classes: int) -> None:
        super().__init__()
        features = pool(s).shape[1]
        wide = [nn.Linear(features, 512), nn.ReLU(), nn.Linear(512, 1024)]
        self.project = nn.Sequential(*wide) if maps(s).dim() == 4 else nn.Identity()
        self.classify = nn.Linear(features, classes)

    def forward(self, s: Any) -> Tensor:
        """Return scores and projections, side by side."""
        seen = pool(s)
        z = F.normalize(self.project(seen), dim=1)
        return torch.cat([self.classify(seen.detach()), z], dim=1)


class Scpl:
    """Supervised contrast between the samples of a batch, and the classifiers' cross-entropy."""

    takes_codes = True

    def __init__(self, classes: int, temperature: float = 0.1) -> None:
        self.classes, self.temperature = classes, temperature

    def __call__(self, m: Tensor, codes: Codes) -> Tensor:
        """Return the loss of a batch."""
        if codes.index.is_floating_point():
            raise ValueError(
                "rule 'scpl' tells samples of one class from those of others, and these labels are"
                " shares of classes: give class numbers, or another rule"
            )
        contrast = supervised_contrast(m[:, self.classes :], codes.index, self.temperature)
        return contrast + smoothed(m[:, : self.classes], codes.gathered()[:, : self.classes])


def supervised_contrast(z_BD: Tensor, labels_B: Tensor, temperature: float) -> Tensor:
    """Return SCPL's loss of rows of length 1: the anchor counts in the divisor, as published.

    An anchor that has no other sample of its class adds 0.
    """
    own = torch.eye(len(z_BD), dtype=torch.bool, device=z_BD.device)
    scores = (z_BD @ z_BD.T / temperature).masked_fill(own, -torch.inf)
    log_share = (scores - scores.logsumexp(1, keepdim=True)).masked_fill(own, 0.0)
    positive = (labels_B[:, None] == labels_B) & ~own
    return -((log_share * positive).sum(1) / (positive.sum(1) + 1)).mean()
