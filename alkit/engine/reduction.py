"""What a part of a batch weighs in the batch's loss: so that micro-batches add up to it exactly.

torch's losses say what their mean is over: samples, elements, targets that are not ignored, or
their classes' weights. All of it is known from the targets before the first forward.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.data import tree
from alkit.data.arguments import given

CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)
ELEMENTS = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss)
FUNCTIONS = {F.cross_entropy: CLASSES, F.nll_loss: CLASSES} | dict.fromkeys(
    (
        F.mse_loss,
        F.l1_loss,
        F.smooth_l1_loss,
        F.huber_loss,
        F.binary_cross_entropy,
        F.binary_cross_entropy_with_logits,
    ),
    ELEMENTS,
)
Loss = Callable[[Any, Any], Tensor]


OWN = "a forward of its own"  # of a subclass of CLASSES: what its mean is over is found by trial


def shares(loss: Loss, targets: Sequence[Any]) -> list[float]:
    """Return by what the loss of each part is multiplied, so that their sum is the batch's loss.

    Args:
        targets: of each part.
    Raises:
        ValueError: a subclass of torch's losses whose mean is over something else.
    """
    options, kind = options_of(loss)
    if options.get("reduction", "mean") == "sum" or len(targets) == 1:
        return [1.0] * len(targets)
    if kind is OWN:
        return _by_trial(loss, targets, options)
    return _normalised([_weight(y, options, kind) for y in targets])


def _normalised(weights: Sequence[float]) -> list[float]:
    whole = sum(weights)
    return [weight / whole if whole else 1.0 / len(weights) for weight in weights]


@torch.no_grad()
def _by_trial(loss: Loss, targets: Sequence[Tensor], options: Mapping[str, Any]) -> list[float]:
    """Return the shares by which parts of some scores add up: torch's, or those of samples."""
    ways = [_normalised([_weight(y, options, kind) for y in targets]) for kind in (CLASSES, None)]
    if all(map(math.isclose, *ways)):
        return ways[0]
    y, weight = torch.cat(list(targets)), options.get("weight")
    classes = 1 + int(y.max()) if weight is None else len(weight)
    shape = len(y), max(2, classes), *y.shape[1:]
    scores = torch.arange(math.prod(shape), device=y.device).sin().view(shape)
    parts = list(zip(scores.split([len(each) for each in targets]), targets, strict=True))
    whole = float(loss(scores, y))
    if math.isnan(whole):  # no label counts
        return ways[0]
    for own in ways:
        pairs = zip(own, parts, strict=True)
        found = sum(share * float(loss(*part)) for share, part in pairs if share)
        if math.isclose(found, whole, rel_tol=1e-4):
            return own
    raise ValueError(
        "the loss is one of torch's with a forward of its own, and its mean is neither torch's nor"
        " that of samples: parts of a batch can't be weighed. Give micro=1, or a function that"
        " returns the sum and has reduction = 'sum'"
    )


def says_reduction(loss: Loss) -> bool:
    """Say whether it is known if a loss is a mean or a sum."""
    options, kind = options_of(loss)
    return kind is not None or options.get("reduction") in ("mean", "sum", "batchmean")


def check_reduction(loss: Loss) -> None:
    """Refuse a loss that does not say whether it is a mean or a sum.

    Raises:
        ValueError: says how to say it.
    """
    if not says_reduction(loss):
        raise ValueError(
            f"the loss {given(loss)} does not say what it is over, and parts of a batch are added:"
            ' set loss.reduction = "mean" (over samples) or "sum"'
        )


def options_of(loss: Any) -> tuple[Mapping[str, Any], Any]:
    """Return a loss's own settings, and which of torch's losses it is, if it is one."""
    if isinstance(loss, partial):
        options, kind = options_of(loss.func)
        return {**options, **loss.keywords}, kind
    if isinstance(loss, nn.Module):
        own = type(loss).forward
        kinds = {base: kind for kind in (CLASSES, ELEMENTS) for base in kind}
        kind = next((kinds[base] for base in kinds if isinstance(loss, base)), None)
        if kind and own not in [base.forward for base in kinds]:
            kind = OWN if kind is CLASSES else None
        names = ("reduction", "weight", "ignore_index")
        return {name: getattr(loss, name) for name in names if hasattr(loss, name)}, kind
    said = {"reduction": loss.reduction} if hasattr(loss, "reduction") else {}
    return said, FUNCTIONS.get(loss)


def _weight(y: Any, options: Mapping[str, Any], kind: Any) -> float:
    first = next(tree.tensors(y))
    if kind is ELEMENTS:
        return float(first.numel())
    if kind is not CLASSES or first.is_floating_point():  # shares of classes count as samples
        return float(len(first))
    counted = first[first != options.get("ignore_index", -100)]
    weight = options.get("weight")
    return float(len(counted) if weight is None else weight.to(counted.device)[counted].sum())


def mean_of_replicas(
    gradients: Sequence[Tensor | None],
    parameters: Sequence[Tensor],
    reduce: Callable[[Tensor], Tensor],
) -> list[Tensor | None]:
    """Return the means over all replicas, all tensors in one message.

    A replica whose data left a parameter alone (an expert that none of its samples chose) adds
    zeros; what no replica has a gradient for stays without one.

    Args:
        gradients: of these parameters, in an order that all replicas have.
    """
    pairs = list(zip(gradients, parameters, strict=True))
    flat = [(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs]
    if not flat:
        return []
    there = torch.tensor([float(g is not None) for g in gradients])
    message = reduce(torch.cat([*flat, there.to(flat[0])]))
    sizes = [p.numel() for p in parameters]
    *parts, counts = message.split([*sizes, len(pairs)])
    return [
        part.view_as(p) if count else None
        for part, p, count in zip(parts, parameters, counts.tolist(), strict=True)
    ]
