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
from alkit.al.bridges import Pool, Pooled, flat, pool
from alkit.al.convert import to_al, to_bp
from alkit.al.model import ALModel
from alkit.al.recipes import FIXED_CODES, Recipe, find_recipe
from alkit.data.parts import DataSet
from alkit.engine.optimizers import adam
from alkit.models.lstm import final_states, last_step, lstm_al
from alkit.models.resnet import resnet18_al, resnet18_al_head
from alkit.models.transformer import transformer
from alkit.models.vgg import vgg_al, vgg_al_head


@dataclass(frozen=True)
class Family:
    """What a family of networks needs to become a BP or an AL model.

    Attributes:
        kind: "images" or "texts".
        blocks: makes the list of blocks; texts give the vocabulary's size first.
        head: makes BP's last block from (blocks, classes, sizes).
        pools: gives AL's pooling, one a block, or None for the recipe's.
    """

    kind: str
    blocks: Callable[..., Sequence[nn.Module]]
    head: Callable[[Sequence[Any], int, dict[str, Any]], nn.Module]
    pools: Callable[[int], list[Pool] | None]


def model(
    family: str,
    data: DataSet,
    method: str,
    *,
    recipe: str | Recipe = "fixed_codes",
    lr: float | None = None,
    legacy: bool = False,
    vectors: Tensor | None = None,
    **sizes: Any,
) -> ALModel | BPModel:
    """Return a new model of a family for a data set.

    Args:
        family: "vgg", "resnet", "lstm" or "transformer".
        method: "bp" or "al".
        recipe: of AL; widths of "original" on images follow the network's width. BP takes its
            learning rate from it.
        legacy: texts with the published networks, defects included: padding has a vector of its own
            and leaks into the embedding's bridge and the LSTM, BP's LSTM head reads the last
            position, the Transformer has another norm and unused parameters.
        vectors: texts: word vectors (V, E) to start the embedding from; E becomes the width.
        sizes: of the blocks: width for images; blocks, width, hidden, ... for texts.
    Raises:
        ValueError: an unknown family or method, or images for texts and the reverse.
    """
    chosen = _family(family, data, legacy)
    if method not in ("bp", "al"):
        raise ValueError(f"method is {method!r}: give bp or al")
    scheme = scheme_for(recipe, chosen.kind)
    if chosen.kind == "texts":
        if vectors is not None:
            sizes |= {"vectors": vectors, "width": vectors.shape[1]}
        assert data.vocabulary is not None  # texts have one
        blocks = chosen.blocks(len(data.vocabulary), **sizes)
    else:
        sizes |= {"channels": data.train.x.shape[1]}
        blocks = chosen.blocks(**sizes)
        scheme = _at_width(scheme, sizes.get("width", 1.0))
    sample, _ = next(iter(data.train.batches(2, shuffle=False)))
    rate = scheme.lr if lr is None else lr
    if method == "bp":
        rate = scheme.bp_lr if lr is None and scheme.bp_lr is not None else rate
        head = chosen.head(blocks, data.num_classes, sizes)
        layout: dict[str, Any] = {"channels_last": scheme.channels_last}
        optimizer = adam if scheme.fused else scheme.optimizer
        return to_bp(
            blocks, data.num_classes, sample, head=head, lr=rate, optimizer=optimizer, **layout
        )
    pools = chosen.pools(len(blocks))
    return to_al(blocks, data.num_classes, sample, recipe=scheme, lr=rate, pool=pools)


def scheme_for(name: str | Recipe, kind: str) -> Recipe:
    """Return a recipe of AL, or that of fixed codes, which are a local rule."""
    return FIXED_CODES[kind] if name == "fixed_codes" else find_recipe(name, kind)


def _at_width(recipe: Recipe, width: float) -> Recipe:
    """Scale the widths of the published bridge with those of the network."""
    if recipe.name != "original":
        return recipe
    hidden = None if recipe.hidden is None else round(width * recipe.hidden)
    return replace(recipe, hidden=hidden, code_dim=round(width * recipe.code_dim))


def _family(name: str, data: DataSet, legacy: bool) -> Family:
    if name not in FAMILIES:
        raise ValueError(f"no family {name!r}; there are {', '.join(FAMILIES)}")
    family = (LEGACY if legacy else FAMILIES).get(name) or FAMILIES[name]
    kind = "texts" if data.train.is_text else "images"
    if family.kind != kind:
        fitting = [other for other, one in FAMILIES.items() if one.kind == kind]
        raise ValueError(
            f"{name} takes {family.kind} and {data.name} holds {kind}: take {' or '.join(fitting)}"
        )
    return family


def _vgg_head(blocks: Sequence[Any], classes: int, sizes: dict[str, Any]) -> nn.Module:
    return vgg_al_head(classes, sizes.get("width", 1.0))


def _resnet_head(blocks: Sequence[Any], classes: int, sizes: dict[str, Any]) -> nn.Module:
    return resnet18_al_head(classes, sizes.get("width", 1.0))


def _lstm_head(blocks: Sequence[Any], classes: int, sizes: dict[str, Any]) -> nn.Module:
    return Pooled(nn.Linear(2 * blocks[-1].lstm.hidden_size, classes), pool)


def _last_step_head(blocks: Sequence[Any], classes: int, sizes: dict[str, Any]) -> nn.Module:
    return Pooled(nn.Linear(2 * blocks[-1].lstm.hidden_size, classes), last_step)


def _transformer_head(blocks: Sequence[Any], classes: int, sizes: dict[str, Any]) -> nn.Module:
    return Pooled(nn.Linear(blocks[-1].norms[0].normalized_shape[0], classes), pool)


def _legacy_lstm(vocabulary: int, **sizes: Any) -> list[nn.Module]:
    return lstm_al(vocabulary, packed=False, **sizes)


def _legacy_transformer(vocabulary: int, **sizes: Any) -> list[nn.Module]:
    return transformer(vocabulary, legacy=True, **sizes)


FAMILIES = {
    "vgg": Family("images", vgg_al, _vgg_head, lambda count: None),
    "resnet": Family("images", resnet18_al, _resnet_head, lambda count: None),
    "lstm": Family("texts", lstm_al, _lstm_head, lambda count: None),
    "transformer": Family("texts", transformer, _transformer_head, lambda count: None),
}
LEGACY = {
    "lstm": Family(
        "texts",
        _legacy_lstm,
        _last_step_head,
        lambda count: [flat, *[final_states] * (count - 1)],
    ),
    "transformer": Family(
        "texts", _legacy_transformer, _transformer_head, lambda count: [flat, *[pool] * (count - 1)]
    ),
}
