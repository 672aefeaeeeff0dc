"""Local rules that are no AL: a head beside every block, and its loss; nothing crosses a block.

    x ──► f1 ──┤ detached ├──► f2 ──┤ detached ├──► f3 ──► the network's own head, on detached s
          └─► b1 ─► loss       └─► b2 ─► loss       └─► b3 ─► loss

linear         a linear head, cross-entropy: the simplest, and the best one most often (06, 08)
cosine         ten times the cosines with a free vector a class
fixed_codes    ten times the cosines with a fixed code per class
predsim        a linear head, and similarities within the batch (Nokland & Eidnes 2019)
dgl            a deep head (Belilovsky et al. 2020)
scpl           contrast within the batch (2026), and a linear head on detached features

A layer's label side has nothing to learn: labels stay one-hot, and what a loss compares beside
scores stands in the columns after them, which one-hot codes `[eye | 0]` do not see.

B batch, C classes, D features, K width of a code.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.al.bridges import Norm1d, Norm2d, Pool, Pooled, over_all, pool, pool_of
from alkit.al.codes import Codes, FixedDecoder, FixedEncoder
from alkit.al.convert import to_al
from alkit.al.layers import AE, AL, Loss
from alkit.al.losses import Contrast
from alkit.al.model import ALModel
from alkit.al.recipes import FIXED_CODES
from alkit.data import tree
from alkit.engine.device import place
from alkit.models.modes import evaluating

SMOOTHING = 0.1  # of labels, in every cross-entropy
PREDSIM_FEATURES = 2048  # the most that the publication's local classifier sees
Head = Callable[[AL, Any, int, bool], tuple[nn.Module, Any]]  # (layer, s, classes, last) -> b, loss


def to_local(
    blocks: Iterable[nn.Module],
    num_classes: int,
    sample: Any,
    *,
    rule: str = "linear",
    lr: float | Mapping[str, float] | None = None,
    pool: Pool | Sequence[Pool] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    loss: Loss | None = None,
    read: str | None = None,
) -> ALModel:
    """Turn blocks into layers that each train by a head of their own, see `alkit.al.rules`.

    Args:
        blocks, num_classes, sample, lr, pool, optimizer, loss, read: as in `alkit.to_al`; pool is
            for "linear", "cosine" and "fixed_codes", the other heads have their own.
        rule: how a block is trained.
    Raises:
        ValueError: there is no such rule, or it has no use for `pool`; what `to_al` refuses.
    Example:
        >>> import torch, alkit
        >>> blocks = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)]
        >>> alkit.to_local(blocks, num_classes=3, sample=torch.zeros(2, 8), rule="dgl").rule
        'dgl'
    """
    if rule not in (*RULES, "fixed_codes"):
        raise ValueError(f"rule is {rule!r}: give {', '.join((*RULES, 'fixed_codes'))}")
    if pool is not None and rule in OWN_POOLING:
        raise ValueError(f"pool is given, and the heads of {rule!r} have their own: leave it out")
    kind = "images" if next(tree.tensors(sample)).dim() == 4 else "texts"
    recipe = replace(FIXED_CODES[kind], smoothing=SMOOTHING)
    options: dict[str, Any] = {"lr": lr, "pool": pool, "optimizer": optimizer}
    model = to_al(blocks, num_classes, sample, recipe=recipe, loss=loss, read=read, **options)
    if rule in RULES:
        give_heads(model, rule, num_classes, sample)
    return model


OWN_POOLING = ("predsim", "dgl", "scpl")


@torch.no_grad()
def give_heads(model: ALModel, rule: str, classes: int, sample: Any) -> None:
    """Give every layer its rule's head, and one-hot labels, padded with zeros to its width."""
    width, x = classes, sample
    with evaluating(model):
        for number, layer in enumerate(model, 1):
            x = layer.enc.f(place(x, layer))
            found = pool_of(cast("nn.Module", layer.enc.f), x)
            if rule in OWN_POOLING and found is not pool:
                masked = "features and what travels with them, which may mark words or padding"
                what = masked if found is over_all else "channels of a sequence"
                raise ValueError(
                    f"block {number} gives {what} {tuple(maps(x).shape)}, and rule={rule!r}"
                    " averages features of tokens: give 'linear', 'cosine' or 'fixed_codes', or end"
                    " the block in its means"
                )
            b, layer.enc.loss_fn = RULES[rule](layer, x, classes, number == len(model))
            first = next(tree.tensors(x))
            layer.enc.b = b.to(first.device, first.dtype)
            with evaluating(b):
                wide = b(x).shape[1]
            same = torch.eye(width, wide, device=first.device, dtype=first.dtype)
            layer.ae, width = AE(FixedEncoder(same), FixedDecoder(same)), wide
    model.rule = rule


def smoothed(scores_BC: Tensor, y: Tensor) -> Tensor:
    """Return the smoothed cross-entropy; y: class numbers or rows of shares (B, C)."""
    return F.cross_entropy(scores_BC, y, label_smoothing=SMOOTHING)


class CosineHead(nn.Module):
    """A free vector a class: (B, K) -> scale x cosine with each, (B, C)."""

    def __init__(self, classes: int, width: int, scale: float = 10.0) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(classes, width) * width**-0.5)
        self.scale = scale

    def forward(self, m_BK: Tensor) -> Tensor:
        """Return the scores."""
        return self.scale * (F.normalize(m_BK, dim=1) @ F.normalize(self.table, dim=1).T)


def maps(s: Any) -> Tensor:
    """Return a block's output as it is, without what stands beside it."""
    return next(tree.tensors(s))


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


def _class_scores() -> Contrast:
    """Return the cross-entropy of scores: their plain product with one-hot codes is themselves."""
    return Contrast(1.0, cosine=False, smoothing=SMOOTHING)


def linear_head(b: nn.Module, classes: int) -> nn.Module:
    """Return a bridge that ends in scores: its pooling, and one linear map."""
    body = b.body if isinstance(b, Pooled) else b
    assert isinstance(body, nn.Sequential)  # as `alkit.al.convert.bridge` makes it
    last = next(at for at in reversed(range(len(body))) if isinstance(body[at], nn.Linear))
    body[last] = nn.Linear(cast(nn.Linear, body[last]).in_features, classes)
    del body[last + 1 :]  # the ending of a code
    return b


def _bridge_of(layer: AL) -> nn.Module:
    assert isinstance(layer.enc.b, nn.Module)
    return layer.enc.b


def _linear(layer: AL, s: Any, classes: int, last: bool) -> tuple[nn.Module, Any]:
    return linear_head(_bridge_of(layer), classes), _class_scores()


def _cosine(layer: AL, s: Any, classes: int, last: bool) -> tuple[nn.Module, Any]:
    b = _bridge_of(layer)
    return nn.Sequential(b, CosineHead(classes, b(s).shape[1])), _class_scores()


def _predsim(layer: AL, s: Any, classes: int, last: bool) -> tuple[nn.Module, Any]:
    return PredSimHead(s, classes), PredSim(classes)


def _dgl(layer: AL, s: Any, classes: int, last: bool) -> tuple[nn.Module, Any]:
    return dgl_head(s, classes, last=last), _class_scores()


def _scpl(layer: AL, s: Any, classes: int, last: bool) -> tuple[nn.Module, Any]:
    return ScplHead(s, classes), Scpl(classes)


RULES: dict[str, Head] = {
    "linear": _linear,
    "cosine": _cosine,
    "predsim": _predsim,
    "dgl": _dgl,
    "scpl": _scpl,
}
