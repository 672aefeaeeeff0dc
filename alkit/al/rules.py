"""Local rules that aren't AL: each block has a head and its loss; nothing crosses a block.

    x ──► f1 ──┤ detached ├──► f2 ──┤ detached ├──► f3 ──► the network's own head, on detached s
          └─► b1 ─► loss       └─► b2 ─► loss       └─► b3 ─► loss

linear         a linear head, cross-entropy: the simplest, and the best one most often (21)
cosine         ten times the cosines with a free vector a class
fixed_codes    ten times the cosines with a fixed code per class

A rule may also be a function of (layer, output of its block, classes) that returns a head and its
loss of (output of the head, codes or one-hot rows); predsim, DGL and SCPL are written so in
notebook 21. The first C columns of the head are scores.

The label side of a layer has nothing to learn: labels stay one-hot. Columns after the scores hold
other values that a loss compares, which one-hot codes `[eye | 0]` do not see.

B batch, C classes, K width of a code.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.al.bridges import DRAWN, Pool, Pooled
from alkit.al.codes import Contrast, FixedDecoder, FixedEncoder
from alkit.al.convert import kind_of, to_al
from alkit.al.layers import AE, AL, Loss
from alkit.al.model import ALModel
from alkit.al.recipes import FIXED_CODES
from alkit.base import tree
from alkit.engine.caller import as_ever
from alkit.engine.device import place
from alkit.models.blocks import dry_run

SMOOTHING = 0.1  # of labels, in every cross-entropy
Made = tuple[nn.Module, Any]  # a head, and its loss
Rule = Callable[[AL, Any, int], Made]


@as_ever()
def to_local(
    blocks: Iterable[nn.Module],
    num_classes: int,
    sample: Any,
    *,
    rule: str | Rule = "linear",
    lr: float | Mapping[str, float] | None = None,
    pool: Pool | Sequence[Pool] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    loss: Loss | None = None,
    read: str | None = None,
) -> ALModel:
    """Turn blocks into layers that each train by a head of their own, see `alkit.al.rules`.

    Args:
        blocks, num_classes, sample, lr, pool, optimizer, loss, read: as in `alkit.to_al`.
        rule: how a block is trained: "linear", "cosine", "fixed_codes" or a function.
    Raises:
        ValueError: there is no such rule, or `to_al` refuses the call.
    Example:
        >>> import torch, alkit
        >>> blocks = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)]
        >>> alkit.to_local(blocks, num_classes=3, sample=torch.zeros(2, 8), rule="cosine").rule
        'cosine'
    """
    if not callable(rule) and rule not in (names := (*RULES, "fixed_codes")):
        raise ValueError(f"rule is {rule!r}: give {', '.join(names)}, or a function")
    recipe = replace(FIXED_CODES[kind_of(sample)], smoothing=SMOOTHING)
    options: dict[str, Any] = {"lr": lr, "pool": pool, "optimizer": optimizer}
    model = to_al(blocks, num_classes, sample, recipe=recipe, loss=loss, read=read, **options)
    if rule != "fixed_codes":
        give_heads(model, rule, num_classes, sample)
    return model


@torch.no_grad()
def give_heads(model: ALModel, rule: str | Rule, classes: int, sample: Any) -> None:
    """Give every layer the head of its rule, and one-hot labels, padded with zeros to its width."""
    make = RULES[rule] if isinstance(rule, str) else rule
    width, x = classes, sample
    model[len(model) - 1].is_last = True
    for layer in model:
        ((_, x),) = dry_run([layer.enc.get_submodule("f")], place(x, layer))
        b, layer.enc.loss_fn = make(layer, x, classes)
        first = next(tree.tensors(x))
        layer.enc.b = b.to(first.device, first.dtype)
        ((_, scores),) = dry_run([b], x)
        same = torch.eye(width, scores.shape[1], device=first.device, dtype=first.dtype)
        layer.ae, width = AE(FixedEncoder(same), FixedDecoder(same)), scores.shape[1]
    model.rule = rule if isinstance(rule, str) else getattr(rule, "__name__", "a function")


class CosineHead(nn.Module):
    """A free vector a class: (B, K) -> scale x cosine with each, (B, C)."""

    def __init__(self, classes: int, width: int, scale: float = 10.0) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(classes, width, **DRAWN) * width**-0.5)
        self.scale = scale

    def forward(self, m_BK: Tensor) -> Tensor:
        """Return the scores."""
        return self.scale * (F.normalize(m_BK, dim=1) @ F.normalize(self.table, dim=1).T)


def class_scores() -> Contrast:
    """Return the cross-entropy of scores: their plain product with one-hot codes is themselves."""
    return Contrast(1.0, cosine=False, smoothing=SMOOTHING)


def linear_head(b: nn.Module, classes: int) -> nn.Module:
    """Return a bridge that ends in scores: its pooling, and one linear map."""
    body: Any = b.body if isinstance(b, Pooled) else b  # as `alkit.al.convert.bridge` makes it
    last = next(at for at in reversed(range(len(body))) if isinstance(body[at], nn.Linear))
    body[last] = nn.Linear(body[last].in_features, classes, **DRAWN)
    del body[last + 1 :]  # the ending of a code
    return b


def _linear(layer: AL, s: Any, classes: int) -> Made:
    return linear_head(cast("nn.Module", layer.enc.b), classes), class_scores()


def _cosine(layer: AL, s: Any, classes: int) -> Made:
    b = cast("nn.Module", layer.enc.b)
    return nn.Sequential(b, CosineHead(classes, b(s).shape[1])), class_scores()


RULES: dict[str, Rule] = {"linear": _linear, "cosine": _cosine}
