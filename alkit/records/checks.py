"""What is wrong with a call can mostly be seen on two samples, before anything trains."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.data import tree
from alkit.data.arguments import check_real, check_whole, given
from alkit.data.given import Loader, Splits, first_samples
from alkit.data.labels import are_numbers, check_shares
from alkit.engine.device import tensors_at
from alkit.models.blocks import as_blocks, dry_run, ends_in_scores, ours, trainable

THREADS = 64  # at most, however few cores there are


def check_options(
    *, lr: Any, loss: Any, device: Any, threads: int, workers: int | None, micro: int, ranks: int
) -> None:
    """Refuse what no method can take, whatever the data.

    Raises:
        TypeError, ValueError: names it, and says what to give.
    """
    for name, rate in lr.items() if isinstance(lr, Mapping) else [("lr", lr)]:
        check_real(name, rate, zero=True)
    check_whole(threads=threads, workers=workers, micro=micro, ranks=ranks)
    cores = os.cpu_count() or 1
    if threads > max(THREADS, 4 * cores):
        raise ValueError(
            f"threads is {threads}, and this machine has {cores} cores: give at most"
            f" {max(THREADS, 4 * cores)}"
        )
    if isinstance(loss, type):
        raise TypeError(f"loss is the class {loss.__name__}: give one of it, {loss.__name__}()")
    if loss is not None and not callable(loss):
        raise TypeError(
            f"loss is {given(loss)}: give a function of (output, y), such as"
            " torch.nn.functional.mse_loss"
        )
    learns = loss.named_parameters() if isinstance(loss, nn.Module) else ()
    if names := [name for name, own in learns if own.requires_grad]:
        raise ValueError(
            f"the loss could learn ({names[0]}), and no method trains it: put that into the last"
            " block, or freeze it (requires_grad_(False))"
        )
    places = [device] if isinstance(device, str | torch.device) or device is None else device
    if not isinstance(places, Sequence) or not all(
        each is None or isinstance(each, str | torch.device) for each in places
    ):
        raise TypeError(f'device is {given(device)}: give a name ("cuda:0"), or several')


def check_measured(data: Splits, metrics: Any, **options: Any) -> None:
    """Refuse what would be measured on a part that there is not.

    Args:
        options: by name, of the validation part.
    Raises:
        TypeError, ValueError: names it.
    """
    named = isinstance(metrics, Mapping) and all(map(callable, metrics.values()))
    if metrics is not None and not named:
        raise TypeError(f"metrics is {given(metrics)}: give {{name: function of (scores, y)}}")
    asked = [name for name, value in options.items() if value and data.validation is None]
    asked += ["metrics"] if metrics and data.validation is None and data.test is None else []
    if asked:
        raise ValueError(f"{asked[0]}= is given, and no validation part to measure: give one")


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
    model: Any,
    data: Splits,
    loss: Any,
    *,
    cast: bool,
    classes: int | None,
    classify: bool = True,
    parts: bool = False,
) -> Looked:
    """Look at two samples: their type against the weights', the scores against their targets.

    Args:
        loss: of the user; None for the method's.
        cast: operators see to types themselves.
        classes: scores of a head that is still to be made.
        classify: without a loss classes are compared; a recipe of AL's may compare numbers.
        parts: batches are trained in parts, so a loader's must be rows that can be told apart.
    Raises:
        ValueError: says what was given, and what to give.
    """
    if not isinstance(model, nn.Module | list | tuple) or ours(model):
        return Looked()  # a method's own model, whose shapes are its own
    parts = parts and isinstance(data.train, Loader)
    batch = first_samples(data.train, None if parts else 2)
    x, y = tree.rows(batch, slice(2))
    if not cast:
        _check_type(x, model)
    blocks = as_blocks(model)
    found = Looked(x, y, _output(blocks, x, "two samples"))
    if parts:
        _check_parts(blocks, batch[0])
    if classes is None and not (found.width and ends_in_scores(blocks)):
        classes = None if loss is not None else data.num_classes
    found = replace(found, classes=classes or found.width)
    for name, part in (("validation", data.validation), ("test", data.test)):
        if part is not None:
            _check_part(name, part, blocks)
    if classify and found.classes == found.width and not any(map(trainable, blocks)):
        raise ValueError(
            "there is nothing to train: no parameter of the network has requires_grad, and no head"
            " is added to it"
        )
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


def _output(blocks: list[nn.Module], x: Any, whose: str) -> Any:
    try:
        return dry_run(blocks, x)[-1][1]
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        what = [f"{each.dtype} of {tuple(each.shape)}" for each in tree.tensors(x)]
        raise ValueError(f"the network does not take {whose}, {what}: {error}") from error


def _check_part(name: str, part: Any, blocks: list[nn.Module]) -> None:
    """Let the blocks have two samples of a part that is measured, before anything is trained."""
    try:
        x, _ = first_samples(part, 2)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    _output(blocks, x, f"two samples of the {name} part")


@torch.no_grad()
def _check_parts(blocks: list[nn.Module], x: Any) -> None:
    """Refuse to cut batches of which a part gives something else than in the whole.

    Raises:
        ValueError: says what the batch holds.
    """
    half = slice((tree.batch_size(x) + 1) // 2)
    whole = tree.rows(dry_run(blocks, x)[-1][1], half)
    alone = dry_run(blocks, tree.rows(x, half))[-1][1]
    for one, other in zip(tree.tensors(whole), tree.tensors(alone), strict=True):
        if not tree.near(one, other):
            what = ", ".join(f"{each.dtype} {tuple(each.shape)}" for each in tree.tensors(x))
            raise ValueError(
                f"of half a batch the network makes something else than of the whole ({what}): give"
                " micro=1 and no ranks, or inputs that have a row for each sample"
            )


def check_hooks(model: Any) -> None:
    """Refuse weights with hooks where copies of them are trained.

    Raises:
        ValueError: names one.
    """
    whole = nn.ModuleList(model) if isinstance(model, list | tuple) else model
    for name, own in whole.named_parameters():
        if own._backward_hooks or own._post_accumulate_grad_hooks:
            raise ValueError(
                f"{name} has a hook, which copies of it have not, and these are trained: take it"
                " off, or train in this process"
            )


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
    at = tensors_at(loss) or next(tree.tensors(scores)).device
    shapes = [[tuple(each.shape) for each in tree.tensors(own)] for own in (scores, y)]
    what = f"scores {shapes[0]} and targets {shapes[1]} of two samples"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Using a target size")
        try:
            value = loss(*tree.to_device((scores, y), at))
        except (RuntimeError, TypeError, ValueError, IndexError, UserWarning) as error:
            raise ValueError(f"the loss does not take {what}: {error}") from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ValueError(
            f"the loss makes {given(value)} of {what}: it must return one number, a tensor, such as"
            " the mean over the samples"
        )


def check_reach(loss: Callable[[Any, Any], Any], model: Any, found: Looked, method: str) -> None:
    """Refuse a loss that has a gradient besides that of the scores, where only theirs is sent back.

    Raises:
        ValueError: says what it may read.
    """
    if found.x is None or found.classes != found.width:
        return
    scores = tree.detach(dry_run(as_blocks(model), found.x, graph=True)[-1][1])
    at = tensors_at(loss) or next(tree.tensors(scores)).device
    with torch.enable_grad():
        value = loss(*tree.to_device((scores, found.y), at))
    if value.requires_grad:
        raise ValueError(
            "the loss has a gradient besides that of the scores (a penalty on weights, or a value"
            f" that a block keeps), and {method} sends back theirs alone: leave it out (optimisers"
            " have weight_decay for penalties), or give method='bp'"
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
