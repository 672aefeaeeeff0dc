"""Losses: the weight of a part in the loss of its batch, and the losses of an epoch noted.

Losses of torch take their mean over samples, elements, targets that are not ignored, or weights of
their classes. All of these are known before the first forward, so micro-batches add up.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.base import tree
from alkit.base.arguments import given
from alkit.data.labels import check_shares
from alkit.engine.device import tensors_at

CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)
ELEMENTS = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss)
OF_NUMBERS = F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss
OF_SHARES = F.binary_cross_entropy, F.binary_cross_entropy_with_logits
FUNCTIONS: dict[Any, Any] = dict.fromkeys((F.cross_entropy, F.nll_loss), CLASSES)
FUNCTIONS |= dict.fromkeys((*OF_NUMBERS, *OF_SHARES), ELEMENTS)
Loss = Callable[[Any, Any], Tensor]


def shares(loss: Loss, targets: Sequence[Any]) -> list[float]:
    """Return factors for the losses of the parts, so that their sum is the loss of the batch."""
    options, kind = options_of(loss)
    if options.get("reduction", "mean") == "sum" or len(targets) == 1:
        return [1.0] * len(targets)
    weights = [weight(y, options, kind) for y in targets]
    whole = sum(weights)
    return [each / whole if whole else 1.0 / len(weights) for each in weights]


def check_reduction(loss: Loss) -> None:
    """Refuse a loss that does not say whether it is a mean or a sum."""
    options, kind = options_of(loss)
    if kind is None and options.get("reduction") not in ("mean", "sum", "batchmean"):
        raise ValueError(
            f"the loss {given(loss)} does not say what it is over, and parts of a batch are added:"
            ' give micro=1, or a function with reduction = "mean" (over samples) or "sum"'
        )


def loss_of(loss: Loss, scores: Any, y: Any) -> Tensor:
    """Return the loss, on the CPU or where the loss has tensors of its own."""
    return loss(*tree.to_device((scores, y), tensors_at(loss) or "cpu"))


def options_of(loss: Any) -> tuple[Mapping[str, Any], Any]:
    """Return the settings of a loss, and which loss of torch it is, if it is one."""
    if isinstance(loss, partial):
        options, kind = options_of(loss.func)
        return {**options, **loss.keywords}, kind
    if isinstance(loss, nn.Module):
        kinds = {base: kind for kind in (CLASSES, ELEMENTS) for base in kind}
        kind = next((kinds[base] for base in kinds if isinstance(loss, base)), None)
        names = ("reduction", "weight", "ignore_index")
        said = {name: getattr(loss, name) for name in names if hasattr(loss, name)}
        if kind and type(loss).forward not in [base.forward for base in kinds]:
            kind = None  # a subclass: its mean may be over anything
            said |= {"reduction": None} if said["reduction"] == "mean" else {}
        return said, kind
    said = {"reduction": loss.reduction} if hasattr(loss, "reduction") else {}
    return said, FUNCTIONS.get(loss) if isinstance(loss, Hashable) else None


def weight(y: Any, options: Mapping[str, Any], kind: Any) -> float:
    """Return the amount that a mean divides by, see `options_of`: samples, elements or weights."""
    first = next(tree.tensors(y))
    if kind is ELEMENTS:
        return float(first.numel())
    if kind is not CLASSES or first.is_floating_point():  # shares of classes count as samples
        return float(len(first))
    counted = first[first != options.get("ignore_index", -100)]
    own = options.get("weight")
    return float(len(counted) if own is None else own.to(counted.device)[counted].sum())


class LossLog:
    """The losses of a stage, a row a batch, where they were made: looking at one waits for it."""

    def __init__(self) -> None:
        self.noted = list[Tensor]()

    def __len__(self) -> int:
        return len(self.noted)

    def note(self, row: Tensor) -> None:
        """Take in the losses of the next batch, (columns,)."""
        self.noted.append(row.detach())

    def state_dict(self) -> dict[str, Tensor]:
        """Return the rows, which other ranks load."""
        return {"rows": self.rows()} if len(self) else {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace all own rows by these."""
        self.noted = [row for rows in state.values() for row in rows]

    def rows(self) -> Tensor:
        """Return all of them, float or double (batches, columns)."""
        rows = torch.stack(self.noted).cpu()
        return rows.to(torch.promote_types(rows.dtype, torch.float32))


def check_labels(y: Tensor, classes: int, loss: Any, where: str = "") -> None:
    """Refuse class numbers without a score, and name the first."""
    bad = ((y < 0) | (y >= classes)) & (y != options_of(loss)[0].get("ignore_index", -100))
    if bad.any():
        first = int(bad.nonzero()[0, 0])
        said = f"label {int(y[bad][0])} of sample {first}{where} has no score"
        raise ValueError(f"{said}: labels are 0 to {classes - 1}")


def looked_at(
    batches: Iterable[Any], own: Loss | None, loss: Loss, classes: int | None
) -> Iterator[Any]:
    """Yield batches, after a look at targets that a loss of classes compares."""
    compares = classes and options_of(loss)[1] is CLASSES
    for number, batch in enumerate(batches):
        y = batch[1] if compares and isinstance(batch, tuple) and len(batch) == 2 else None
        if isinstance(y, Tensor) and y.device.type == "cpu":
            if y.is_floating_point() and own is None:
                check_shares(y)
            elif not y.is_floating_point() and y.dtype != torch.bool:
                check_labels(y, classes or 0, loss, f" of batch {number}")
        yield batch


def check_finite(*losses: Tensor | None) -> None:
    """Refuse to go on from losses (batches, ...) that are not finite, and name the first batch."""
    for each in losses:
        if each is not None and not each.isfinite().all():
            batch, *part = (~each.isfinite()).nonzero()[0].tolist()
            where = f", layer and part {part}" if len(part) > 1 and each[0].numel() > 1 else ""
            said = f"the loss is {float(each[batch, *part])} at batch {batch} of the epoch{where}"
            raise FloatingPointError(f"{said}: lower the learning rate, or look at this batch")
