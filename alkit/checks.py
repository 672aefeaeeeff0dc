"""Most faults of a call can be seen on its first batch, before anything trains.

the call      numbers, names, a loss that is called like one, a part to measure on
the network   takes a batch of each part, and makes the same of half a batch as of both halves
the targets   have a score each
the loss      takes both, makes one number, and no gradient except of the scores
training      something learns, and no copy loses a hook that the original has
"""

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from alkit.base import tree
from alkit.base.arguments import check_real, check_whole, given
from alkit.data.given import Loader, first_batch
from alkit.data.labels import are_numbers, check_shares
from alkit.engine.caller import CallerState
from alkit.engine.device import tensors_at
from alkit.engine.losses import CLASSES, check_labels, options_of
from alkit.engine.trainer import Plan
from alkit.models.blocks import as_blocks, dry_run, ends_in_scores, ours

# errors that a user's network or loss raises where it does not take its input
FAULTS = RuntimeError, TypeError, ValueError, LookupError, AttributeError


def check_call(plan: Plan) -> None:
    """Refuse arguments that no method can take, whatever the data."""
    for name, rate in plan.lr.items() if isinstance(plan.lr, Mapping) else [("lr", plan.lr)]:
        check_real(name, rate, zero=True)
    check_whole(threads=plan.threads, workers=plan.workers, ranks=plan.ranks)
    check_real("clip", plan.settings.get("clip"))
    if plan.threads > (most := max(64, 4 * (os.cpu_count() or 1))):
        raise ValueError(f"threads is {plan.threads}: give at most {most}")
    if torch.float16 in CallerState.here().autocast.values():
        raise ValueError("autocast is on for float16, which has no scaler: give torch.bfloat16")
    loss, metrics, data = plan.loss, plan.metrics, plan.data
    if isinstance(loss, type) or not (loss is None or callable(loss)):
        raise TypeError(f"loss is {given(loss)}: give a function of (output, y), or a module")
    learns = loss.named_parameters() if isinstance(loss, nn.Module) else ()
    if names := [name for name, own in learns if own.requires_grad]:
        raise ValueError(
            f"the loss could learn ({names[0]}), and no method trains it: put that into the last"
            " block, or freeze it (requires_grad_(False))"
        )
    named = isinstance(metrics, Mapping) and all(map(callable, metrics.values()))
    if metrics is not None and not named:
        raise TypeError(f"metrics is {given(metrics)}: give {{name: function of (scores, y)}}")
    if wrong := [each for each in plan.callbacks if not callable(each)]:
        raise TypeError(f"callbacks holds {given(wrong[0])}: give functions of (row, model)")
    looks = [each for each in plan.callbacks if getattr(each, "needs_validation", False)]
    if data.validation is None and (looks or (metrics and data.test is None)):
        what = "a callback that looks at it" if looks else "metrics="
        raise ValueError(f"{what} is given, and no validation part to measure: give one")


def look(plan: Plan, room: str) -> Plan:
    """Look at the first batch, and return the plan with it and its sizes; the rest stays."""
    data, model, loss = plan.data, plan.model, plan.loss
    if ours(model):
        return plan  # a method's own model, whose shapes are its own
    deals = plan.settings.get("micro", 1) != 1 or plan.ranks > 1 or room in ("elastic", "split")
    x, y = first_batch(data.train, plan.batch_size)
    blocks = as_blocks(model)
    scores = _output(blocks, x, "the first batch")
    if deals and isinstance(data.train, Loader):
        _check_parts(blocks, x)
    _check_numbers(blocks, data.train)
    width, classes = width_of(scores), plan.settings.get("num_classes")
    if classes is None and not (width and ends_in_scores(blocks)):
        classes = None if loss is not None else data.num_classes
    plan = replace(plan, sample=(x, y), width=width, classes=classes or width)
    for name, part in (("validation", data.validation), ("test", data.test)):
        if part is not None:
            held, _ = first_batch(part, plan.batch_size, f"the {name} data")
            _output(blocks, held, f"the first batch of the {name} part")
    classify = room != "al" or plan.method == "bp"  # a recipe of AL may compare numbers
    headed = plan.classes == width  # by the network itself
    if classify and headed and not any(p.requires_grad for b in blocks for p in b.parameters()):
        raise ValueError("there is nothing to train: no parameter of the network has requires_grad")
    if isinstance(y, Tensor) and (classify or not y.is_floating_point()):
        _check_targets(scores, y, getattr(data.train, "y", y), loss)
    if loss is not None and headed:
        alone = room == "elastic" and max(plan.ranks, plan.workers or 1) == 1
        _check_loss(plan, loss, one_graph=plan.method == "bp" or alone or room == "split")
    numbers = loss is None or options_of(loss)[1] is CLASSES
    for part in (data.train, data.validation, data.test) if numbers else ():
        labels = getattr(part, "y", None)
        if plan.classes and isinstance(labels, Tensor) and are_numbers(labels):
            check_labels(labels, plan.classes, loss)
    return plan


def check_copies(plan: Plan, room: str, whole: Any) -> None:
    """Refuse hooks of the weights of a network as it was given, which copies of it lack."""
    if plan.ranks == 1 and room != "split":
        return
    parts = nn.ModuleList(whole) if isinstance(whole, list | tuple) else whole
    for name, own in parts.named_parameters():
        if own._backward_hooks or own._post_accumulate_grad_hooks:
            raise ValueError(
                f"{name} has a hook, which copies of it have not, and these are trained: take it"
                " off, or train in this process"
            )


def width_of(scores: Any) -> int | None:
    """Return how many scores a sample has; None if the output isn't rows of them."""
    return scores.shape[1] if isinstance(scores, Tensor) and scores.dim() == 2 else None


def _output(blocks: list[nn.Module], x: Any, whose: str) -> Any:
    try:
        return dry_run(blocks, x)[-1][1]
    except FAULTS as error:
        raise ValueError(f"the network does not take {whose}, {_shapes(x)}: {error}") from error


def _shapes(x: Any) -> str:
    return ", ".join(f"{each.dtype} of {tuple(each.shape)}" for each in tree.tensors(x))


def _check_numbers(blocks: list[nn.Module], part: Any) -> None:
    """Refuse a table with a cell that isn't a number, unless the network can do without it."""
    for column in tree.tensors(getattr(part, "x", None)):
        for row, *place in column.isnan().nonzero()[:1].tolist():
            output = dry_run(blocks, tree.rows(part.x, slice(row, row + 1)))[-1][1]
            if any(each.isnan().any() for each in tree.tensors(output)):
                raise ValueError(f"x is nan in row {row}, at {place}: leave it out, or fill it in")


def _check_parts(blocks: list[nn.Module], x: Any) -> None:
    """Refuse to cut batches whose parts give something else than in the whole."""
    half = slice((tree.batch_size(x) + 1) // 2)
    whole = tree.rows(dry_run(blocks, x)[-1][1], half)
    alone = dry_run(blocks, tree.rows(x, half))[-1][1]
    pairs = zip(tree.tensors(whole), tree.tensors(alone), strict=True)
    if not all(tree.near(one, other) for one, other in pairs):
        raise ValueError(
            f"of half a batch the network makes something else than of the whole ({_shapes(x)}):"
            " give micro=1 and no ranks, or inputs that have a row for each sample"
        )


def _check_targets(scores: Any, y: Tensor, every: Tensor, loss: Any) -> None:
    """Refuse targets that aren't classes, or that torch would spread over the scores."""
    if loss is None and y.is_floating_point():
        check_shares(every)
    rows = loss is None and y.dim() == 2 and not y.is_floating_point()
    if rows and getattr(scores, "shape", ())[2:] != y.shape[1:]:  # else a class for each place
        said = f"give y[:, 0] for a class a sample, scores (B, C, {y.shape[1]}), or a loss"
        raise ValueError(f"targets are rows of {y.shape[1]} whole numbers: {said}")
    if loss is None and y.dtype == torch.bool:
        raise ValueError("targets are bool: give y.long() for classes, or y.float() for numbers")
    own = getattr(loss, "__module__", "").startswith("torch.nn") and y.is_floating_point()
    alike = not isinstance(scores, Tensor) or scores.shape == y.shape
    if own and not alike and scores.numel() == y.numel():
        raise ValueError(
            f"the loss would spread targets {tuple(y.shape)} over scores {tuple(scores.shape)} of"
            f" {len(y)} samples: give y[:, None], or a network that ends alike"
        )


def _check_loss(plan: Plan, loss: Callable[..., Any], *, one_graph: bool) -> None:
    """Call the loss once on scores without a graph, the one way that a gradient is sent back."""
    assert plan.sample is not None
    x, y = plan.sample
    scores = tree.detach(dry_run(as_blocks(plan.model), x, graph=True)[-1][1])
    at = tensors_at(loss) or next(tree.tensors(scores)).device
    shapes = [[tuple(each.shape) for each in tree.tensors(own)] for own in (scores, y)]
    what = f"scores {shapes[0]} and targets {shapes[1]} of the first batch"
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.filterwarnings("error", message="Using a target size")
        try:
            value = loss(*tree.to_device((scores, y), at))
        except (*FAULTS, UserWarning) as error:
            raise ValueError(f"the loss does not take {what}: {error}") from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ValueError(f"the loss makes {given(value)} of {what}: return one number, a tensor")
    if value.requires_grad and not one_graph:
        raise ValueError(
            "the loss has a gradient besides that of the scores (a penalty on weights, or a value"
            f" that a block keeps), and {plan.method} sends back only theirs: leave it out, give"
            " the optimiser weight_decay, or take method='bp'"
        )
