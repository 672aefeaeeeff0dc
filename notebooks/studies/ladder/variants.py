"""The variants of notebook 21: one list of blocks, trained with ever more of AL's label side.

    A0 bp             end to end                     A6 coupled     codes that see inputs
    A2 linear         a linear head per block        A7 published   AL as published
    A3 cosine         a free vector per class        A8 predsim     similarities of a batch
    A4 fixed_codes    orthonormal codes              A9 dgl         a deep head
    A5 detached       AL: learned codes, centred     A10 scpl       contrast within a batch

The blocks are the same ones, and start alike; A0 to A6 pool alike. Committed rows of A1, deep
supervision, and of H9, codes read by a head, are of version 0.3. B batch, C classes, K of a code.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from alkit.al.backprop import BPModel
from alkit.al.convert import to_al
from alkit.al.layers import AL
from alkit.al.model import ALModel
from alkit.al.recipes import FIXED_CODES, Recipe, find_recipe
from alkit.al.rules import SMOOTHING, Rule, give_heads
from alkit.base import tree
from studies.al.families import at_width
from studies.ladder import rules
from studies.ladder.rules import smoothed

HEADS: dict[str, str | Rule] = {"bp": "linear", "linear": "linear", "cosine": "cosine"}
HEADS |= {"predsim": rules.predsim, "dgl": rules.dgl, "scpl": rules.scpl}


@dataclass(frozen=True)
class Variant:
    """A row of the tables: its code, a line about it, and whether no gradient crosses a border."""

    code: str
    what: str
    local: bool = True


VARIANTS = {
    "bp": Variant("A0", "backprop, with A2's last head", local=False),
    "linear": Variant("A2", "a linear head per block"),
    "cosine": Variant("A3", "cosines with a free vector per class"),
    "fixed_codes": Variant("A4", "cosines with frozen orthonormal codes"),
    "detached": Variant("A5", "AL: learned codes, centred; contrast with all classes"),
    "coupled": Variant("A6", "AL: the contrast also trains the codes"),
    "published": Variant("A7", "AL as published: squared errors"),
    "predsim": Variant("A8", "predsim: a linear head and similarities of the batch"),
    "dgl": Variant("A9", "DGL: a deep head per block"),
    "scpl": Variant("A10", "SCPL: contrast within the batch, detached classifiers"),
}


class NearestCode(ALModel):
    """AL that reads an exit out by the nearest code of its level, as its contrast is trained."""

    def __init__(self, layers: Iterable[AL], classes: int) -> None:
        super().__init__(layers, label_shortcut=True)
        self.classes = classes

    @torch.no_grad()
    def tables(self) -> list[Tensor]:
        """Return the codes of all classes at every level, (C, K)."""
        own = next(self.parameters())
        rows, found = torch.eye(self.classes, dtype=own.dtype, device=own.device), []
        for layer in self:
            rows = layer.ae.g(rows)
            found.append(rows)
        return found

    def exits(self, x: Any) -> list[Tensor]:
        """Return the similarities (B, C) of every exit with its level's codes."""
        found = []
        for layer, rows in zip(self, self.tables(), strict=True):
            x = layer.enc.f(x)
            found.append(layer.enc.loss_fn.scores(layer.enc.b(x), rows))
        return found

    def _scores(self, x: Any, depth: int | None, read: str) -> Tensor:
        return self.exits(x)[(depth or len(self)) - 1]


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
    fixed = replace(FIXED_CODES[kind], smoothing=SMOOTHING)
    recipe = _recipe(name, fixed, kind, width)
    model = to_al(blocks, classes, sample, recipe=recipe, lr=lr)
    if name in HEADS:
        give_heads(model, HEADS[name], classes, sample)
    if name in ("detached", "coupled"):
        model[0].ae.loss_fn = smoothed
        model = NearestCode(model, classes)
    if name == "bp":
        encs = [layer.enc for layer in model]
        return BPModel([*(enc.f for enc in encs), encs[-1].b], lr, smoothed)
    return model


def _recipe(name: str, fixed: Recipe, kind: str, width: float) -> Recipe:
    learned = replace(fixed, codes="learned", centred=True)
    return {
        "detached": learned,
        "coupled": replace(learned, coupled=True),
        "published": at_width(find_recipe("original", kind), width),
    }.get(name, fixed)
