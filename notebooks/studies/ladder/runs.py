"""The label ladder's runs: one variant on one set with one seed and rate, and what is recorded.

    tuning    seed 100, every rate of the grid: the test part stays closed
    testing   seeds 0 to 5 at the rate that was best on validation, at the last epoch

The split into train, validation and test is one for all seeds. A seed fixes the initial blocks, the
order of the samples and the noise, the same for all variants.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from alkit.al.backprop import BPModel
from alkit.al.fit import Trainer
from alkit.al.model import ALModel
from alkit.data.parts import DataSet, Part
from alkit.engine.callbacks import Best
from alkit.engine.loop import train_epochs
from alkit.engine.modes import evaluating
from alkit.engine.trainer import Plan, Record
from alkit.lab import results
from studies.al import exits
from studies.al.families import FAMILIES
from studies.common.rates import cosine
from studies.common.study import TUNING_SEED
from studies.ladder.models import NearestCode
from studies.ladder.variants import VARIANTS, build, head_parameters

SPLIT_SEED = 0


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Attributes:
        fit: None where a loss was not finite.
        validation, test: accuracy in percent of every exit, then of the mean of their scores; None
            where the test part stayed closed.
        correct: float (N,), the last exit on the test part.
        losses: of the last epoch, a row a layer; of backprop one number.
        head_parameters: beside the blocks.
    """

    variant: str
    seed: int
    lr: float
    fit: Record | None
    validation: list[float]
    test: list[float] | None
    correct: Tensor | None
    losses: list[list[float]]
    head_parameters: int


def run(
    variant: str,
    family: str,
    data: DataSet,
    *,
    seed: int,
    lr: float,
    epochs: int,
    batch_size: int,
    sizes: Mapping[str, Any] | None = None,
    vectors: Tensor | None = None,
    augment: str = "none",
) -> Outcome:
    """Train a variant for all epochs and look at the last one; the tuning seed leaves test closed.

    Args:
        family: "lstm", "transformer", "vgg" or "resnet".
        sizes: of its blocks.
        vectors: of texts: word vectors (V, E) to start from.
    """
    torch.manual_seed(seed)
    blocks = _blocks(family, data, dict(sizes or {}), vectors)
    width = 1.0 if data.vocabulary else (sizes or {}).get("width", 1.0)
    plan = Plan(parts_of(data.augmented(augment)), epochs=epochs, batch_size=batch_size, seed=seed)
    narrow = FAMILIES[family].kind == "images"  # training is; accuracies are taken in float32
    return trained(variant, blocks, data, plan, lr=lr, width=width, narrow=narrow)


def trained(
    variant: str,
    blocks: Sequence[nn.Module],
    data: DataSet,
    plan: Plan,
    *,
    lr: float,
    width: float = 1.0,
    narrow: bool = False,
) -> Outcome:
    """Train a variant over blocks of one's own, by a cosine schedule, as `run` does.

    Args:
        plan: its seed is that of the order, and says whether the test part is opened.
        width: factor of a picture network's channels; narrow: train in bfloat16.
    """
    sample, _ = next(iter(data.train.batches(2, shuffle=False)))
    options: dict[str, Any] = {"lr": lr, "width": width}
    model = build(variant, blocks, data.num_classes, sample, **options)
    fit = _fit(model, plan, narrow=narrow)
    validation, _ = _exits(model, data.validation)
    opened = plan.seed != TUNING_SEED and fit is not None
    test, correct = _exits(model, data.test) if opened else (None, None)
    losses = [] if fit is None or fit.losses is None else fit.losses.mean(0).tolist()
    beside = head_parameters(model)
    return Outcome(variant, plan.seed, lr, fit, validation, test, correct, losses, beside)


def parts_of(data: DataSet) -> DataSet:
    """Return what is trained on and looked at; the test part stays closed."""
    return DataSet(data.name, data.train, data.validation, None, data.num_classes)


def _fit(model: Any, plan: Plan, *, narrow: bool) -> Record | None:
    """Train all epochs; None where a loss is not finite."""
    method = "bp" if isinstance(model, BPModel) else "local" if model.rule else "al"
    trainer = Trainer(model, method, {"seed": plan.seed})
    last = Best("epoch")  # the largest number
    whole = replace(plan, scheduler=cosine(plan.epochs), callbacks=(last,), progress=False)
    try:
        with torch.autocast("cpu", torch.bfloat16) if narrow else nullcontext():
            return train_epochs(trainer, whole)
    except FloatingPointError:
        return None


def exit_scores(model: Any, part: Part, batch_size: int = 512) -> Tensor:
    """Return the class scores of every exit, float (L, N, C), in the part's order; of BP one.

    A head is the last exit.
    """
    found = _by_codes(model, part, batch_size)
    if getattr(model, "head", None) is None:
        return found
    top = [model.predict(x).cpu() for x, _ in part.batches(batch_size, shuffle=False)]
    return torch.cat([found, torch.cat(top)[None]])


def _by_codes(model: Any, part: Part, batch_size: int) -> Tensor:
    if isinstance(model, ALModel) and not isinstance(model, NearestCode):
        return exits.scores(model, part, batch_size)
    read = getattr(model, "exits", lambda x: [model.predict(x)])
    with torch.no_grad(), evaluating(model):
        batches = [torch.stack(read(x)) for x, _ in part.batches(batch_size, shuffle=False)]
    return torch.cat(batches, dim=1)


def record(made: results.Run, family: str, data: str, outcome: Outcome) -> None:
    """Write a run's values into a record, all that the tables are built from."""
    variant, fit = VARIANTS[outcome.variant], outcome.fit
    recipe = "" if outcome.variant == "bp" else outcome.variant
    labels = {"method": variant.method, "model": family, "data": data, "seed": outcome.seed}
    extra = {"recipe": recipe, "variant": variant.code, "lr": outcome.lr}
    rows: list[tuple[str, Any, str, int | None]] = [
        ("diverged", fit is None, "", None),
        ("head_parameters", outcome.head_parameters, "", None),
        ("train_s", 0.0 if fit is None else fit.seconds, "s", None),
    ]
    if fit is not None:
        *levels, mean = outcome.validation
        curve = [round(100 * value, 3) for value in fit.history.val_acc]
        rows += [
            ("val_accuracy", levels[-1], "%", None),
            ("val_exits", [round(value, 3) for value in levels], "%", None),
            ("val_mean_of_exits", mean, "%", None),
            ("val_curve", curve, "%", None),
            ("losses", outcome.losses, "", None),
        ]
    if outcome.test is not None and outcome.correct is not None:
        *levels, mean = outcome.test
        n = len(outcome.correct)
        rows += [
            ("accuracy", levels[-1], "%", n),
            ("exits", [round(value, 3) for value in levels], "%", n),
            ("mean_of_exits", mean, "%", n),
        ]
    for metric, value, unit, n in rows:
        made.record(metric, value, n=n, unit=unit, extra=extra, **labels)


def _exits(model: Any, part: Part) -> tuple[list[float], Tensor]:
    """Return the accuracy of every exit and of the mean of scores, and what the last has right."""
    scores = exit_scores(model, part)
    right = [(each.argmax(1).cpu() == part.y).float() for each in [*scores, scores.mean(0)]]
    return [100 * each.mean().item() for each in right], right[-2]


def _blocks(
    family: str, data: DataSet, sizes: dict[str, Any], vectors: Tensor | None
) -> Sequence[nn.Module]:
    if not data.vocabulary:
        return FAMILIES[family].blocks(channels=data.train.x.shape[1], **sizes)
    if vectors is not None:
        sizes |= {"vectors": vectors, "width": vectors.shape[1]}
    return FAMILIES[family].blocks(len(data.vocabulary), **sizes)
