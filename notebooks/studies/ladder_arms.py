"""The arms of the label ladder: one list of blocks, trained with ever more of AL's label side.

    A0 bp                 end to end                      A6 coupled       codes that see inputs
    A1 deep_supervision   A2's heads, nothing detached    A7 published     AL as published
    A2 linear             a linear head a block           A7b published_ce trained label side first
    A3 cosine             a free vector a class           A8 predsim       similarities of a batch
    A4 fixed_codes        orthonormal codes               A9 dgl           a deep head
    A5 detached           AL: learned codes, centred      A10 scpl         contrast within a batch

The blocks are the same ones, and start alike; A0 to A6 pool alike.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from alkit.al.backprop import BPModel
from alkit.al.bridges import Pooled
from alkit.al.codes import FixedDecoder, FixedEncoder
from alkit.al.convert import to_al
from alkit.al.label_side import train_labels
from alkit.al.layers import AE, AL, ENC
from alkit.al.losses import Contrast
from alkit.al.model import ALModel
from alkit.al.recipes import Recipe, find_recipe
from alkit.data import tree
from alkit.engine.random import random_from
from alkit.models.modes import evaluating
from studies import ladder_heads as heads

__all__ = ["ARMS", "Arm", "DeepSupervision", "NearestCode", "build", "head_parameters"]

LABEL_EPOCHS, LABEL_STEPS = 100, 100  # the most, of labels alone, before A7b trains
Head = Callable[[AL, Any, int, bool], tuple[nn.Module, Any]]  # (layer, s, classes, last) -> b, loss


@dataclass(frozen=True)
class Arm:
    """A row of the ladder.

    Attributes:
        code: its place on the ladder.
        what: a line for tables.
        local: whether no gradient crosses a border between blocks.
    """

    code: str
    what: str
    local: bool = True

    @property
    def method(self) -> str:
        """Return "bp" or "al", as records name methods."""
        return "al" if self.local else "bp"


ARMS = {
    "bp": Arm("A0", "backprop, with A2's last head", local=False),
    "deep_supervision": Arm("A1", "A2's heads, losses added, nothing detached", local=False),
    "linear": Arm("A2", "a linear head a block"),
    "cosine": Arm("A3", "cosines with a free vector a class"),
    "fixed_codes": Arm("A4", "cosines with frozen orthonormal codes"),
    "detached": Arm("A5", "AL: learned codes, centred; contrast with all classes"),
    "coupled": Arm("A6", "AL: the contrast also trains the codes"),
    "published": Arm("A7", "AL as published: squared errors"),
    "published_ce": Arm("A7b", "AL, squared errors, label side trained beforehand"),
    "predsim": Arm("A8", "predsim: a linear head and similarities of the batch"),
    "dgl": Arm("A9", "DGL: a deep head a block"),
    "scpl": Arm("A10", "SCPL: contrast within the batch, detached classifiers"),
}


class DeepSupervision(BPModel):
    """A1: every exit's cross-entropy, added, through all blocks below; one optimiser.

    Args:
        stack: an AL model whose bridges end in class scores.
    """

    def __init__(self, stack: ALModel, lr: float) -> None:
        super().__init__([layer.enc for layer in stack], lr, heads.smoothed)

    def exits(self, x: Any, key: tuple[int, int] | None = None) -> list[Tensor]:
        """Return the scores (B, C) of every exit; key: see `BPModel.forward`."""
        found = []
        for index, enc in enumerate(self.blocks):
            with nullcontext() if key is None else random_from(key[0], index, key[1]):
                x, scores = enc(x)
            found.append(scores)
        return found

    def loss(self, x: Any, y: Tensor, key: tuple[int, int] | None = None) -> Tensor:
        """Return the sum over the exits."""
        return torch.stack([self.loss_fn(scores, y) for scores in self.exits(x, key)]).sum()

    @torch.no_grad()
    def predict(self, x: Any, depth: int | None = None) -> Tensor:
        """Return the scores of an exit, from 1; by default of the last."""
        with evaluating(self):
            return self.exits(x)[(depth or len(self)) - 1]


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

    @torch.no_grad()
    def predict(self, x: Any, depth: int | None = None) -> Tensor:
        """Return the similarities (B, C) of an exit with its level's codes."""
        layers = list(self)[: depth or len(self)]
        with evaluating(self):
            for layer in layers:
                x = layer.enc.f(x)
            rows = self.tables()[len(layers) - 1]
            return layers[-1].enc.loss_fn.scores(layers[-1].enc.b(x), rows)


def build(
    name: str,
    blocks: Iterable[nn.Module],
    classes: int,
    sample: Any,
    *,
    lr: float,
    width: float = 1.0,
) -> ALModel | BPModel:
    """Return a new model of an arm over these blocks.

    Args:
        sample: a batch that the first block takes, as for `to_al`.
        width: factor of a picture network's channels, which the published bridges follow.
    Raises:
        ValueError: there is no arm of that name.
    """
    if name not in ARMS:
        raise ValueError(f"no arm {name!r}; there are {', '.join(ARMS)}")
    kind = "images" if next(tree.tensors(sample)).dim() == 4 else "texts"
    model = to_al(blocks, classes, sample, recipe=_recipe(name, kind, width), lr=lr)
    if name in HEADS:
        _give_heads(model, HEADS[name], classes, sample)
    if name in ("detached", "coupled"):
        model[0].ae.loss_fn = heads.smoothed
        return NearestCode(model, classes)
    if name == "published_ce":
        _train_label_side(model, classes)
    if name == "deep_supervision":
        return DeepSupervision(model, lr)
    if name == "bp":
        encs = [layer.enc for layer in model]
        return BPModel([*(enc.f for enc in encs), encs[-1].b], lr, heads.smoothed)
    return model


def head_parameters(model: ALModel | BPModel) -> int:
    """Return how many parameters serve training beside the blocks: bridges, heads, label side."""
    if isinstance(model, ALModel):
        return sum(sum(n.values()) - n["f"] for n in map(AL.parameter_counts, model))
    beside = [block.b for block in model if isinstance(block, ENC)] or [model[-1]]
    return sum(p.numel() for module in beside for p in module.parameters())


def _recipe(name: str, kind: str, width: float) -> Recipe:
    fixed = replace(find_recipe("fixed_codes", kind), smoothing=heads.SMOOTHING)
    learned = replace(fixed, codes="learned", centred=True)
    plain = replace(fixed, ending="none")
    published = find_recipe("original", kind)
    if published.hidden:
        sizes = {"hidden": round(width * published.hidden)}
        published = replace(published, code_dim=round(width * published.code_dim), **sizes)
    return {
        "bp": plain,
        "deep_supervision": plain,
        "linear": plain,
        "detached": learned,
        "coupled": replace(learned, coupled=True),
        "published": published,
        "published_ce": find_recipe("mse", kind),
    }.get(name, fixed)


def _class_scores() -> Contrast:
    """Return the cross-entropy of scores: their plain product with one-hot codes is themselves."""
    return Contrast(1.0, cosine=False, smoothing=heads.SMOOTHING)


def _linear(layer: AL, s: Any, classes: int, last: bool) -> tuple[nn.Module, Any]:
    b = layer.enc.b
    body = b.body if isinstance(b, Pooled) else b
    body[-1] = nn.Linear(body[-1].in_features, classes)  # A4's pooling, whatever its code's width
    return b, _class_scores()


def _cosine(layer: AL, s: Any, classes: int, last: bool) -> tuple[nn.Module, Any]:
    b = nn.Sequential(layer.enc.b, heads.CosineHead(classes, layer.enc.b(s).shape[1]))
    return b, _class_scores()


def _predsim(layer: AL, s: Any, classes: int, last: bool) -> tuple[nn.Module, Any]:
    return heads.PredSimHead(s, classes), heads.PredSim(classes)


def _dgl(layer: AL, s: Any, classes: int, last: bool) -> tuple[nn.Module, Any]:
    return heads.dgl_head(s, classes, last=last), _class_scores()


def _scpl(layer: AL, s: Any, classes: int, last: bool) -> tuple[nn.Module, Any]:
    return heads.ScplHead(s, classes), heads.Scpl(classes)


HEADS: dict[str, Head] = {
    "bp": _linear,
    "deep_supervision": _linear,
    "linear": _linear,
    "cosine": _cosine,
    "predsim": _predsim,
    "dgl": _dgl,
    "scpl": _scpl,
}


@torch.no_grad()
def _give_heads(model: ALModel, head: Head, classes: int, sample: Any) -> None:
    """Give every layer its head, and one-hot labels, padded with zeros to the head's width."""
    width, x = classes, sample
    with evaluating(model):
        for number, layer in enumerate(model, 1):
            x = layer.enc.f(x)
            b, layer.enc.loss_fn = head(layer, x, classes, number == len(model))
            layer.enc.b = b
            with evaluating(b):
                wide = b(x).shape[1]
            same = torch.eye(width, wide)
            layer.ae, width = AE(FixedEncoder(same), FixedDecoder(same)), wide


def _train_label_side(model: ALModel, classes: int) -> None:
    """Train the label side alone until every level decodes all classes and none is stalled."""
    sides = [layer.ae for layer in model]
    options = {"epochs": LABEL_EPOCHS, "steps": LABEL_STEPS, "batch_size": 64, "lr": 1e-3}
    train_labels(sides, classes, until_right=True, **options)
    model[0].ae.loss_fn = heads.smoothed
