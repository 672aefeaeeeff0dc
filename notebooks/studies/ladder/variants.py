"""The variants of the label ladder: one list of blocks, trained with ever more of AL's label side.

    A0 bp                 end to end                      A6 coupled       codes that see inputs
    A1 deep_supervision   A2's heads, nothing detached    A7 published     AL as published
    A2 linear             a linear head per block         A8 predsim       similarities of a batch
    A3 cosine             a free vector per class         A9 dgl           a deep head
    A4 fixed_codes        orthonormal codes               A10 scpl         contrast within a batch
    A5 detached           AL: learned codes, centred

The blocks are the same ones, and start alike; A0 to A6 pool alike. H9 adds the head of A0, trained
on detached features next to the layers, and reads classes from it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from alkit.al.backprop import BPModel
from alkit.al.convert import bridge, to_al
from alkit.al.layers import AL, ENC
from alkit.al.model import ALModel
from alkit.al.recipes import FIXED_CODES, Recipe, find_recipe
from alkit.al.rules import SMOOTHING, Rule, give_heads, linear_head
from alkit.base import tree
from alkit.engine.modes import evaluating
from studies.ladder import rules
from studies.ladder.models import DeepSupervision, NearestCode
from studies.ladder.rules import smoothed

HEADS: dict[str, str | Rule] = {name: "linear" for name in ("bp", "deep_supervision", "linear")}
HEADS |= {"cosine": "cosine", "predsim": rules.predsim, "dgl": rules.dgl, "scpl": rules.scpl}


@dataclass(frozen=True)
class Variant:
    """A row of the ladder.

    Attributes:
        code: its place on the ladder.
        what: a line for tables.
        local: whether no gradient crosses a border between blocks.
        base: the variant whose layers this one reads by a head.
        head: whether scores come from A0's head, trained on the last block's detached features.
    """

    code: str
    what: str
    local: bool = True
    base: str = ""
    head: bool = False

    @property
    def method(self) -> str:
        """Return "bp" or "al", as records name methods."""
        return "al" if self.local else "bp"


VARIANTS = {
    "bp": Variant("A0", "backprop, with A2's last head", local=False),
    "deep_supervision": Variant("A1", "A2's heads, losses added, nothing detached", local=False),
    "linear": Variant("A2", "a linear head per block"),
    "cosine": Variant("A3", "cosines with a free vector per class"),
    "fixed_codes": Variant("A4", "cosines with frozen orthonormal codes"),
    "detached": Variant("A5", "AL: learned codes, centred; contrast with all classes"),
    "coupled": Variant("A6", "AL: the contrast also trains the codes"),
    "published": Variant("A7", "AL as published: squared errors"),
    "predsim": Variant("A8", "predsim: a linear head and similarities of the batch"),
    "dgl": Variant("A9", "DGL: a deep head per block"),
    "scpl": Variant("A10", "SCPL: contrast within the batch, detached classifiers"),
    "fixed_codes_head": Variant("H9a", "A4, read by a head", base="fixed_codes", head=True),
    "detached_head": Variant("H9b", "A5, read by a head", base="detached", head=True),
    "coupled_head": Variant("H9c", "A6, read by a head", base="coupled", head=True),
}


def build(
    name: str,
    blocks: Iterable[nn.Module],
    classes: int,
    sample: Any,
    *,
    lr: float,
    width: float = 1.0,
) -> ALModel | BPModel:
    """Return a new model of a variant over these blocks.

    Args:
        sample: a batch that the first block takes, as for `to_al`.
        width: factor of a picture network's channels, which the published bridges follow.
    """
    if name not in VARIANTS:
        raise ValueError(f"no variant {name!r}; there are {', '.join(VARIANTS)}")
    kind = "images" if next(tree.tensors(sample)).dim() == 4 else "texts"
    variant = VARIANTS[name]
    base = variant.base or name
    fixed = replace(FIXED_CODES[kind], smoothing=SMOOTHING)
    recipe = _recipe(base, fixed, kind, width)
    model = to_al(blocks, classes, sample, recipe=recipe, lr=lr)
    if base in HEADS:
        give_heads(model, HEADS[base], classes, sample)
    if base in ("detached", "coupled"):
        model[0].ae.loss_fn = smoothed
        model = NearestCode(model, classes)
    if variant.head:
        _put_head(model, fixed, classes, sample, lr)
    if name == "deep_supervision":
        return DeepSupervision(model, lr)
    if name == "bp":
        encs = [layer.enc for layer in model]
        return BPModel([*(enc.f for enc in encs), encs[-1].b], lr, smoothed)
    return model


def head_parameters(model: ALModel | BPModel) -> int:
    """Return how many parameters serve training beside the blocks: bridges, heads, label side."""
    if isinstance(model, ALModel):
        return sum(sum(n.values()) - n["f"] for n in map(AL.parameter_counts, model))
    beside = [block.b for block in model if isinstance(block, ENC)] or [model[-1]]
    return sum(p.numel() for module in beside for p in module.parameters())


def _recipe(name: str, fixed: Recipe, kind: str, width: float) -> Recipe:
    learned = replace(fixed, codes="learned", centred=True)
    published = find_recipe("original", kind)
    if published.hidden:
        sizes = {"hidden": round(width * published.hidden)}
        published = replace(published, code_dim=round(width * published.code_dim), **sizes)
    return {
        "detached": learned,
        "coupled": replace(learned, coupled=True),
        "published": published,
    }.get(name, fixed)


@torch.no_grad()
def _put_head(model: ALModel, recipe: Recipe, classes: int, sample: Any, lr: float) -> None:
    """Give a model backprop's head, drawn after the layers, which so begin as they do without."""
    x = sample
    with evaluating(model):
        for layer in model:
            x = layer.enc.f(x)
    head = linear_head(bridge(recipe, x, None), classes)
    model.head = BPModel([head], lr, smoothed, recipe.optimizer, first=len(model))
    model.read = "head"
