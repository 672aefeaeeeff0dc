"""The variants of the label ladder: one list of blocks, trained with ever more of AL's label side.

    A0 bp                 end to end                      A6 coupled       codes that see inputs
    A1 deep_supervision   A2's heads, nothing detached    A7 published     AL as published
    A2 linear             a linear head per block         A7b published_ce label side trained
    A3 cosine             a free vector per class         A8 predsim       similarities of a batch
    A4 fixed_codes        orthonormal codes               A9 dgl           a deep head
    A5 detached           AL: learned codes, centred      A10 scpl         contrast within a batch

The blocks are the same ones, and start alike; A0 to A6 pool alike. H1 to H8 change one thing of A4,
A5 or A6 each; H9's have backprop's head beside the layers, on detached features, and read by it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
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
from studies.ladder import labels, rules
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
        base: the variant that this one changes, to see what it is that helps; its rate is that
            one's, but with a head, which has a best rate of its own.
        recipe: changes of that variant's recipe.
        change: of its label side, a function of (model, classes).
        replays: whether its labels follow the codes of a run of the base, each class another's;
            `studies.ladder.runs.trained` makes that run.
        head: whether scores come from A0's head, trained on the last block's detached features.
    """

    code: str
    what: str
    local: bool = True
    base: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    change: Callable[[ALModel, int], None] | None = None
    replays: bool = False
    head: bool = False

    @property
    def method(self) -> str:
        """Return "bp" or "al", as records name methods."""
        return "al" if self.local else "bp"


NARROW = {"code_dim": 8}  # narrower than DBpedia has classes: codes must share directions
VARIANTS = {
    "bp": Variant("A0", "backprop, with A2's last head", local=False),
    "deep_supervision": Variant("A1", "A2's heads, losses added, nothing detached", local=False),
    "linear": Variant("A2", "a linear head per block"),
    "cosine": Variant("A3", "cosines with a free vector per class"),
    "fixed_codes": Variant("A4", "cosines with frozen orthonormal codes"),
    "detached": Variant("A5", "AL: learned codes, centred; contrast with all classes"),
    "coupled": Variant("A6", "AL: the contrast also trains the codes"),
    "published": Variant("A7", "AL as published: squared errors"),
    "published_ce": Variant(
        "A7b", "AL, squared errors, label side trained beforehand", change=labels.train_label_side
    ),
    "predsim": Variant("A8", "predsim: a linear head and similarities of the batch"),
    "dgl": Variant("A9", "DGL: a deep head per block"),
    "scpl": Variant("A10", "SCPL: contrast within the batch, detached classifiers"),
    "random_codes": Variant(
        "H1a", "frozen random directions", base="fixed_codes", change=labels.random_directions
    ),
    "simplex_codes": Variant(
        "H1b", "frozen orthonormal codes, centred", base="fixed_codes", recipe={"centred": True}
    ),
    "trained_codes": Variant(
        "H1c",
        "codes of labels alone, then frozen",
        base="detached",
        change=labels.train_then_freeze,
    ),
    "permuted_detached": Variant(
        "H3a", "each class another's codes", base="detached", replays=True
    ),
    "permuted_coupled": Variant("H3b", "each class another's codes", base="coupled", replays=True),
    "coupled_0": Variant(
        "H4a",
        "no autoencoder",
        base="coupled",
        change=partial(labels.weigh, weight=0.0),
    ),
    "coupled_0.1": Variant(
        "H4b",
        "a tenth of it",
        base="coupled",
        change=partial(labels.weigh, weight=0.1),
    ),
    "one_code": Variant("H5", "one level of codes", base="detached", change=labels.one_code),
    "narrow_fixed": Variant("H7a", "codes 8 wide", base="fixed_codes", recipe=NARROW),
    "narrow_detached": Variant("H7b", "codes 8 wide", base="detached", recipe=NARROW),
    "narrow_coupled": Variant("H7c", "codes 8 wide", base="coupled", recipe=NARROW),
    "told": Variant("H8a", "g is told super-classes", base="detached", change=labels.tell),
    "told_dealt": Variant(
        "H8b",
        "g is told super-classes of others",
        base="detached",
        change=partial(labels.tell, dealt=True),
    ),
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
    recipe = replace(_recipe(base, fixed, kind, width), **variant.recipe)
    model = to_al(blocks, classes, sample, recipe=recipe, lr=lr)
    if base in HEADS:
        give_heads(model, HEADS[base], classes, sample)
    if base in ("detached", "coupled", "published_ce"):
        model[0].ae.loss_fn = smoothed
    if base in ("detached", "coupled"):
        model = NearestCode(model, classes)
    if variant.head:
        _put_head(model, fixed, classes, sample, lr)
    if variant.change is not None:
        variant.change(model, classes)
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
        "published_ce": find_recipe("mse", kind),
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
