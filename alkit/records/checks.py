"""What is wrong with a call can mostly be seen on two samples, before anything trains."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.data import tree
from alkit.data.arguments import given
from alkit.data.given import Loader, Splits, first_samples
from alkit.data.labels import are_numbers, check_shares
from alkit.models.blocks import as_blocks, dry_run, ends_in_scores

__all__ = ["Looked", "check_labels", "compares_classes", "look", "scores_of"]


@dataclass(frozen=True)
class Looked:
    """Two samples, and what the blocks make of them.

    Attributes:
        x, y: of the training part; None beside a method's own model.
        scores: what the last block gives.
        classes: as said; or how many scores the blocks end in, if they do; or as a data set says.
    """

    x: Any = None
    y: Any = None
    scores: Any = None

    classes: int | None = None

    @property
    def width(self) -> int | None:
        """How many scores a sample has."""
        return _width(self.scores)


def look(
    model: Any, data: Splits, loss: Any, *, cast: bool, classes: int | None, classify: bool = True
) -> Looked:
    """Look at two samples: their type against the weights', the scores against their targets.

    Args:
        loss: of the user; None for the method's.
        cast: operators see to types themselves.
        classes: scores of a head that is still to be made.
        classify: without a loss classes are compared; a recipe of AL's may compare numbers.
    Raises:
        ValueError: says what was given, and what to give.
    """
    if not isinstance(model, nn.Module | list | tuple) or hasattr(model, "predict"):
        return Looked()  # a method's own model, whose shapes are its own
    x, y = first_samples(data.train, 2)
    if not cast:
        _check_type(x, model)
    blocks = as_blocks(model)
    found = Looked(x, y, dry_run(blocks, x)[-1][1])
    if classes is None and not (found.width and ends_in_scores(blocks)):
        classes = None if loss is not None else data.num_classes
    found = replace(found, classes=classes or found.width)
    if isinstance(y, Tensor) and (classify or not y.is_floating_point()):
        _check_targets(found, loss)
    if loss is not None and found.classes == found.width:
        _check_loss(loss, found.scores, y)
    if not isinstance(y, Tensor) or not are_numbers(y):
        return found
    width = found.classes
    if width is not None and compares_classes(loss):
        for part in (data.train, data.validation, data.test):
            if part is not None and not isinstance(part, Loader) and hasattr(part, "y"):
                check_labels(part.y, width)
    return found


def scores_of(model: Any, x: Any) -> int | None:
    """Return how many scores a sample has after the last block; None if its output is no rows."""
    return _width(dry_run(as_blocks(model), x)[-1][1])


def _width(scores: Any) -> int | None:
    return scores.shape[1] if isinstance(scores, Tensor) and scores.dim() == 2 else None


def compares_classes(loss: Any) -> bool:
    """Say whether a loss takes class numbers: the methods' own does, and torch's of classes."""
    known = (nn.CrossEntropyLoss, nn.NLLLoss)
    return loss is None or loss in (F.cross_entropy, F.nll_loss) or isinstance(loss, known)


def check_labels(y: Tensor, width: int) -> None:
    """Compare class numbers with the scores that there are.

    Raises:
        ValueError: names the first label that no score is for.
    """
    if not are_numbers(y):
        return
    bad = ((y < 0) & (y != -100)) | (y >= width)
    if bad.any():
        first = int(bad.nonzero()[0])
        raise ValueError(
            f"label {int(y[first])} of sample {first} has no score: with {width} scores, labels are"
            f" 0 to {width - 1}"
        )


def _check_targets(found: Looked, loss: Callable[..., Tensor] | None) -> None:
    y, scores = found.y, found.scores
    if loss is None and y.is_floating_point():
        check_shares(y)
    if loss is None and y.dim() == 2 and not y.is_floating_point():
        raise ValueError(
            f"targets are whole numbers (N, {y.shape[1]}), which are no classes of samples: give"
            " y[:, 0], or a loss of your own"
        )
    if loss is None and y.dtype == torch.bool:
        raise ValueError("targets are bool: give y.long() for classes, or y.float() for numbers")
    spread = (
        getattr(loss, "__module__", "").startswith("torch.nn")
        and isinstance(scores, Tensor)
        and y.is_floating_point()
    )
    if spread and scores.shape != y.shape and scores.numel() == y.numel():
        raise ValueError(
            f"targets are {tuple(y.shape)} and scores {tuple(scores.shape)} for {len(y)} samples,"
            " which the loss would spread over each other: give y[:, None], or a network that ends"
            " alike"
        )


@torch.no_grad()
def _check_loss(loss: Callable[[Any, Any], Any], scores: Any, y: Any) -> None:
    """Call the loss once: what it can't compare is said in the first place.

    Raises:
        ValueError: shapes or types that don't fit, or a loss that is not one number.
    """
    place = next(tree.tensors(scores)).device
    shapes = [[tuple(each.shape) for each in tree.tensors(own)] for own in (scores, y)]
    what = f"scores {shapes[0]} and targets {shapes[1]} of two samples"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Using a target size")
        try:
            value = loss(scores, tree.to_device(y, place))
        except (RuntimeError, TypeError, ValueError, IndexError, UserWarning) as error:
            raise ValueError(f"the loss does not take {what}: {error}") from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ValueError(
            f"the loss makes {given(value)} of {what}: it must return one number, a tensor, such as"
            " the mean over the samples"
        )


def _check_type(x: Any, model: Any) -> None:
    given = next((each.dtype for each in tree.tensors(x) if each.is_floating_point()), None)
    modules = [model] if isinstance(model, nn.Module) else list(model)
    parameters = (each for module in modules for each in module.parameters())
    own = next((each.dtype for each in parameters if each.is_floating_point()), given)
    if given is not None and given != own:
        name = str(own).removeprefix("torch.")
        raise ValueError(
            f"x is {given} and the network's weights are {own}: give x.to({own})"
            f", or make the network {name}"
        )
