"""What a part of a batch weighs in the batch's loss: so that micro-batches add up to it exactly.

torch's losses say what their mean is over: samples, elements, targets that are not ignored, or
their classes' weights. All of it is known from the targets before the first forward.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from alkit.base import tree
from alkit.base.arguments import given
from alkit.engine.device import tensors_at

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


def shares(loss: Loss, targets: Sequence[Any]) -> list[float]:
    """Return by what the loss of each part is multiplied, so that their sum is the batch's loss."""
    options, kind = options_of(loss)
    if options.get("reduction", "mean") == "sum" or len(targets) == 1:
        return [1.0] * len(targets)
    weights = [_weight(y, options, kind) for y in targets]
    whole = sum(weights)
    return [weight / whole if whole else 1.0 / len(weights) for weight in weights]


def says_reduction(loss: Loss) -> bool:
    """Say whether it is known if a loss is a mean or a sum."""
    options, kind = options_of(loss)
    return kind is not None or options.get("reduction") in ("mean", "sum", "batchmean")


def check_reduction(loss: Loss) -> None:
    """Refuse a loss that does not say whether it is a mean or a sum."""
    if not says_reduction(loss):
        raise ValueError(
            f"the loss {given(loss)} does not say what it is over, and parts of a batch are added:"
            ' give micro=1, or a function with reduction = "mean" (over samples) or "sum"'
        )


def loss_of(loss: Loss, scores: Any, y: Any) -> Tensor:
    """Return the loss, on the CPU or where the loss has tensors of its own."""
    return loss(*tree.to_device((scores, y), tensors_at(loss) or "cpu"))


def options_of(loss: Any) -> tuple[Mapping[str, Any], Any]:
    """Return a loss's own settings, and which of torch's losses it is, if it is one."""
    if isinstance(loss, partial):
        options, kind = options_of(loss.func)
        return {**options, **loss.keywords}, kind
    if isinstance(loss, nn.Module):
        kinds = {base: kind for kind in (CLASSES, ELEMENTS) for base in kind}
        kind = next((kinds[base] for base in kinds if isinstance(loss, base)), None)
        names = ("reduction", "weight", "ignore_index")
        said = {name: getattr(loss, name) for name in names if hasattr(loss, name)}
        if kind and type(loss).forward not in [base.forward for base in kinds]:
            kind = None  # a subclass: nobody says what its mean is over
            said |= {"reduction": None} if said["reduction"] == "mean" else {}
        return said, kind
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
