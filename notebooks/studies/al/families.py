"""The four families as model builders: vgg and resnet for images, lstm and transformer for texts.

    model = families.model("lstm", data, "al", recipe="fixed_codes", hidden=128, vectors=vectors)
    twin  = families.model("lstm", data, "bp", hidden=128, vectors=vectors)

Both are made of the same blocks; with the same torch seed they start from the same weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from alkit.al.backprop import BPModel
from alkit.al.convert import to_al, to_bp
from alkit.al.model import ALModel
from alkit.al.recipes import FIXED_CODES, Recipe, find_recipe
from alkit.data.parts import DataSet
from alkit.engine.optimizers import adam
from studies.al.networks import (
    lstm_al,
    resnet18_al,
    resnet18_al_head,
    transformer,
    vgg_al,
    vgg_al_head,
)


@dataclass(frozen=True)
class Family:
    """Blocks of "images" or "texts" (which give the vocabulary's size), and a head of BP.

    A head is made of (classes, width); None is a mean over tokens, then linear.
    """

    kind: str
    blocks: Callable[..., Sequence[nn.Module]]
    head: Callable[[int, float], nn.Module] | None = None


def model(
    family: str,
    data: DataSet,
    method: str,
    *,
    recipe: str | Recipe = "fixed_codes",
    lr: float | None = None,
    vectors: Tensor | None = None,
    **sizes: Any,
) -> ALModel | BPModel:
    """Return a new model of a family for a data set.

    Args:
        family: "vgg", "resnet", "lstm" or "transformer".
        method: "bp" or "al".
        recipe: of AL; widths of "original" on images follow the network's width. BP takes its
            learning rate from it.
        vectors: texts: word vectors (V, E) to start the embedding from; E becomes the width.
        sizes: of the blocks: width for images; blocks, width, hidden, ... for texts.
    """
    chosen = FAMILIES[family]
    if method not in ("bp", "al"):
        raise ValueError(f"method is {method!r}: give bp or al")
    scheme = scheme_for(recipe, chosen.kind)
    if chosen.kind == "texts":
        if vectors is not None:
            sizes |= {"vectors": vectors, "width": vectors.shape[1]}
        blocks = chosen.blocks(len(data.vocabulary), **sizes)
    else:
        sizes |= {"channels": data.train.x.shape[1]}
        blocks = chosen.blocks(**sizes)
        scheme = at_width(scheme, sizes.get("width", 1.0))
    sample, _ = next(iter(data.train.batches(2, shuffle=False)))
    rate = scheme.lr if lr is None else lr
    if method == "bp":
        rate = scheme.bp_lr if lr is None and scheme.bp_lr is not None else rate
        head = chosen.head and chosen.head(data.num_classes, sizes.get("width", 1.0))
        layout: dict[str, Any] = {"channels_last": scheme.channels_last}
        optimizer = adam if scheme.fused else scheme.optimizer
        return to_bp(
            blocks, data.num_classes, sample, head=head, lr=rate, optimizer=optimizer, **layout
        )
    return to_al(blocks, data.num_classes, sample, recipe=scheme, lr=rate)


def scheme_for(name: str | Recipe, kind: str) -> Recipe:
    """Return a recipe of AL, or that of fixed codes, which are a local rule."""
    return FIXED_CODES[kind] if name == "fixed_codes" else find_recipe(name, kind)


def at_width(recipe: Recipe, width: float) -> Recipe:
    """Scale the widths of the published bridge with those of the network."""
    if recipe.name != "original":
        return recipe
    hidden = None if recipe.hidden is None else round(width * recipe.hidden)
    return replace(recipe, hidden=hidden, code_dim=round(width * recipe.code_dim))


FAMILIES = {
    "vgg": Family("images", vgg_al, vgg_al_head),
    "resnet": Family("images", resnet18_al, resnet18_al_head),
    "lstm": Family("texts", lstm_al),
    "transformer": Family("texts", transformer),
}
