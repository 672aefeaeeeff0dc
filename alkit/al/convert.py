"""Any list of blocks as an AL model, or as its BP twin; shapes are found by a dry run."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from alkit.al import bridges
from alkit.al.backprop import BPModel
from alkit.al.bridges import DRAWN, Pool, Pooled, pool_of
from alkit.al.codes import FixedDecoder, FixedEncoder, code_table
from alkit.al.layers import AE, AL, ENC, Loss
from alkit.al.model import ALModel
from alkit.al.recipes import FIRST_LOSSES, Recipe, find_recipe
from alkit.base import tree
from alkit.engine.caller import as_ever
from alkit.engine.modes import layout_kept
from alkit.engine.optimizers import adam
from alkit.models.blocks import dry_run, learning

LEAST = 64  # channels of a "conv" bridge: a narrower one holds back what its block learns
Optimizer = Callable[..., torch.optim.Optimizer]


@as_ever()
def to_al(
    blocks: Iterable[nn.Module],
    num_classes: int,
    sample: Any,
    *,
    recipe: str | Recipe = "detached",
    code_dim: int | None = None,
    lr: float | Mapping[str, float] | None = None,
    pool: Pool | Sequence[Pool] | None = None,
    optimizer: Optimizer | None = None,
    loss: Loss | None = None,
    read: str | None = None,
) -> ALModel:
    """Turn the blocks of a BP model into an AL model, one layer a block.

    A block without parameters (ReLU, pooling, flattening) has nothing to learn and joins the block
    before it. A last block that gives `num_classes` scores is the head: it is trained along with
    the layers, on detached features.

    Args:
        blocks: modules, each taking what the one before returns; used as they are, not copied.
        num_classes: C, 2 or more; 1 only for numbers to predict, with a recipe of squared errors.
        sample: two samples that the first block takes, run once in evaluation mode.
        recipe: bridges, codes and losses; of `alkit.al.recipes.RECIPES`, or a `Recipe`, whose own
            values are what is not given here. By default codes are learned from labels alone; those
            of "coupled" also from inputs, which on pictures wants a head (notebook 21).
        code_dim: K, the width of the label code.
        lr: a number or {"enc": ..., "ae": ...}.
        pool: reduces the output of a block to (B, D), one for all blocks or one a block.
        loss: of the head.
        read: where scores come from: "head" by default where there is one, or "code".
    Raises:
        ValueError: a recipe that does not suit one class, a loss or `read="head"` without a head.
    """
    chosen = find_recipe(recipe, kind_of(sample))
    _check_classes(num_classes, chosen)
    if code_dim is not None:
        chosen = replace(chosen, code_dim=code_dim)
    pairs = dry_run(learning(blocks), sample)
    top = [pairs.pop()[0]] if are_scores(pairs[-1][1], num_classes) else []
    _check_parts(len(pairs), top, loss)
    if chosen.channels_last:
        _innermost([block for block, _ in pairs], top, sample)
    rate, made = chosen.lr if lr is None else lr, optimizer or chosen.optimizer
    layers, pools = [], list(pool) if isinstance(pool, Sequence) else [pool] * len(pairs)
    for level, ((block, s), own_pool) in enumerate(zip(pairs, pools, strict=True)):
        enc, ae = _halves(chosen, level, num_classes, block, s, own_pool)
        layers.append(AL(enc, ae, rate, made, coupled=chosen.coupled))
    options: dict[str, Any] = {"read": read, "num_classes": num_classes}
    if top:
        one = rate["enc"] if isinstance(rate, Mapping) else rate
        own = loss or FIRST_LOSSES[chosen.head]
        options["head"] = BPModel(top, one, own, made, first=len(layers))
        options["read"] = read or chosen.read
    model = ALModel(layers, label_shortcut=chosen.label_shortcut, **options)
    model.rule = "fixed_codes" if chosen.codes == "fixed" else ""
    return model


@as_ever()
def to_bp(
    blocks: Iterable[nn.Module],
    num_classes: int,
    sample: Any,
    *,
    head: nn.Module | None = None,
    lr: float = 1e-3,
    pool: Pool | None = None,
    optimizer: Optimizer = adam,
    channels_last: bool = True,
    clip: float | None = None,
) -> BPModel:
    """Close the blocks with a head, if they do not give scores: the BP twin of `to_al`.

    Args:
        head: takes the output of the last block; by default none where that is scores, or else
            pooling and a linear layer.
        clip: largest norm of all gradients together; None for no limit.
    """
    pairs = dry_run(blocks, sample)
    stack, last = [block for block, _ in pairs], pairs[-1][1]
    if head is None and not are_scores(last, num_classes):
        s, reduce = next(tree.tensors(last)), pool or pool_of(nn.ModuleList(stack), last)
        head = Pooled(nn.Linear(reduce(last).shape[1], num_classes, **DRAWN).to(s), reduce)
    stack += [] if head is None else [head]
    if channels_last:
        _innermost(stack, [], sample)
    return BPModel(stack, lr, optimizer=optimizer, clip=clip)


def _innermost(blocks: list[nn.Module], rest: list[nn.Module], sample: Any) -> None:
    """Keep channels of pictures innermost, if the blocks and the rest of the network take that.

    A block that calls `view` on features may not. Volumes have no such order of their own.
    """
    with layout_kept(blocks) as undo:
        for block in blocks:
            if all(own.dim() < 5 for own in block.parameters()):
                block.to(memory_format=torch.channels_last)
        with contextlib.suppress(RuntimeError):
            dry_run([*blocks, *rest], sample)
            undo.clear()


def _check_classes(num_classes: int, recipe: Recipe) -> None:
    squared = recipe.codes == "learned" and recipe.first_loss == recipe.associated == "mse"
    if num_classes < 1 or (num_classes == 1 and not squared):
        raise ValueError(
            f"num_classes is {num_classes}, and recipe {recipe.name!r} compares classes: give 2 or"
            " more, or for numbers to predict targets (B, 1) and recipe='regression'"
        )


def _check_parts(layers: int, top: list[nn.Module], loss: Loss | None) -> None:
    if not layers:
        said = 'none below it trains by itself: give two, as alkit.blocks cuts them, or method="bp"'
        raise ValueError(f"the network is one block, which gives the scores, and {said}")
    if loss is not None and not top:
        said = 'layers\' losses are the recipe\'s, give recipe="regression", "multi_label", ...'
        raise ValueError(f"loss is given, and the last block gives no scores for it: {said}")


def are_scores(output: Any, num_classes: int) -> bool:
    """Say whether an output is a row of scores a sample."""
    return isinstance(output, Tensor) and output.dim() == 2 and output.shape[1] == num_classes


def _halves(
    recipe: Recipe, level: int, classes: int, block: nn.Module, s: Any, pool: Pool | None
) -> tuple[ENC, AE]:
    """Return both sides of a layer, as they fit a block that gives s."""
    if pool is None and (found := pool_of(block, s)) in (bridges.over_positions, bridges.over_all):
        pool = found
    width = recipe.code_dim if level else classes
    b, ae = bridge(recipe, s, pool), label_side(recipe, level, width)
    floats = (each for each in tree.tensors(s) if each.is_floating_point())
    like = next(floats, torch.zeros((), **DRAWN))
    return ENC(block, b.to(like), recipe.associated_loss()), ae.to(like)


def bridge(recipe: Recipe, s: Any, pool_of_caller: Pool | None) -> nn.Module:
    """Return b for a block that gives s."""
    x = next(tree.tensors(s))
    if recipe.bridge == "conv" and x.dim() == 4 and pool_of_caller is None:
        # wider than the code that it makes, a bridge only costs time
        width = recipe.hidden or max(LEAST, min(x.shape[1], recipe.code_dim))
        body = [nn.Linear(4 * width, recipe.code_dim, **DRAWN), *_ending(recipe)]
        return nn.Sequential(bridges.ConvPool(x.shape[1], width, x.shape[2]), *body)
    reduce = pool_of_caller or (bridges.flat if recipe.bridge == "flat" else bridges.pool)
    widths = [reduce(s).shape[1], recipe.code_dim]
    if recipe.hidden and x.dim() == 4:
        widths.insert(1, recipe.hidden)
    body = []
    for before, after in pairwise(widths):
        body += [nn.Linear(before, after, **DRAWN), *_ending(recipe)]
    return Pooled(nn.Sequential(*body), reduce)


def _ending(recipe: Recipe) -> list[nn.Module]:
    if recipe.ending == "unit":
        return [bridges.UnitLength()]
    return [] if recipe.ending == "none" else [bridges.ACTIVATIONS[recipe.ending]()]


def label_side(recipe: Recipe, level: int, width: int) -> AE:
    """Return the label side of a level (0 and up) above codes that are `width` wide."""
    loss = recipe.autoencoder_loss(level)
    if recipe.codes == "fixed" and level:
        return AE(nn.Identity(), nn.Identity(), loss)  # one table serves all levels
    if recipe.codes == "fixed":
        table = code_table(width, recipe.code_dim)
        return AE(FixedEncoder(table), FixedDecoder(table, recipe.scale), loss)
    activation, decoder = bridges.ACTIVATIONS[recipe.encoder], recipe.decoders[min(level, 1)]
    g = nn.Sequential(nn.Linear(width, recipe.code_dim, **DRAWN), activation())
    h: list[nn.Module] = [nn.Linear(recipe.code_dim, width, **DRAWN)]
    if decoder != "none":
        h.append(bridges.ACTIVATIONS[decoder]())
    return AE(g, nn.Sequential(*h), loss)


def kind_of(sample: Any) -> str:
    """Say what a sample is; only pictures have four dimensions."""
    return "images" if next(tree.tensors(sample)).dim() == 4 else "texts"
