"""Associated learning, local rules and backprop behind `alkit.fit`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alkit.al.backprop import BPModel
from alkit.al.convert import to_al, to_bp
from alkit.al.model import ALModel
from alkit.al.rules import to_local
from alkit.al.stages import updating
from alkit.al.train import check_method
from alkit.al.trainer import Trainer
from alkit.data.arguments import check_settings
from alkit.data.labels import are_numbers, are_shares
from alkit.data.seeds import drawing_from, generator_for
from alkit.engine.device import device_of, spread
from alkit.engine.evaluate import by_column
from alkit.engine.loop import Plan
from alkit.engine.record import Record
from alkit.engine.request import Request, fit_on_ranks, meet
from alkit.engine.steps import Steps

KEYWORD = Parameter.KEYWORD_ONLY
# what makes a model of blocks; of others `to_al`
MADE_BY: dict[str, Callable[..., Any]] = {
    "bp": to_bp,
    "local": to_local,
    "local_pipeline": to_local,
}


def fit(request: Request) -> Record:
    """Run what was asked: a model as it is, or blocks, of which one is made.

    Settings are those of `to_al`, of `to_local`, or with "bp" of `to_bp`, beside lr and optimizer:
    recipe, code_dim, rule, pool, read, head; and num_classes, for a network without a head.
    """
    request.refuse("micro", why="its batches stay whole")
    request.refuse("settings", why="give recipe=, rule=, code_dim= or pool= by name")
    if not request.method.endswith("pipeline"):
        request.refuse("ranks", why="of its family only the pipeline runs on ranks")
    with drawing_from(generator_for("made", request.plan.seed).get_state()):
        model = model_of(request)  # what is added begins with weights of the seed
    if request.on_ranks and request.plan.precision == "float16":
        request.refuse("precision", why="ranks keep no scales: give bfloat16")
    if request.ranks > 1:
        return fit_on_ranks(_fit, model, request)
    return _fit(model, request)


def _fit(model: ALModel | BPModel, request: Request) -> Record:
    executor = request.executor or ("ranks" if request.ranks > 1 else "threads")
    plan = request.plan
    if request.compile and plan.precision == "float16":
        request.refuse("compile", why="scales of float16 come between backward and step: bfloat16")
    trainer = Trainer(
        spread(model, request.own_device),
        request.method,
        workers=request.workers,
        threads=request.threads,
        executor=executor,
        seed=plan.seed,
        cuts=request.cuts,
        compile=request.compile,
    )
    with _stepping(model, plan), _without_gradients(model):
        identity: dict[str, Any] = {"threads": request.threads}
        identity |= {"compile": request.compile} if request.compile else {}
        return request.train(trainer, meet(executor, model), identity=identity)


@contextmanager
def _stepping(model: ALModel | BPModel, plan: Plan) -> Iterator[None]:
    """Let every part that updates by itself step as asked; at the end it has its own way back."""
    before = [part.steps for part in updating(model)]
    narrow = plan.precision == "float16"
    if narrow or plan.clip is not None or plan.accumulate > 1:
        for part in updating(model):
            at = device_of(part) or torch.device("cpu")
            scaler = torch.amp.GradScaler(at.type) if narrow else None
            part.steps = Steps(plan.clip, plan.accumulate, scaler)
    try:
        yield
    finally:
        for part, steps in zip(updating(model), before, strict=True):
            part.steps = steps


@contextmanager
def _without_gradients(model: nn.Module) -> Iterator[None]:
    """Leave no batch's gradients behind."""
    try:
        yield
    finally:
        for parameter in model.parameters():
            parameter.grad = None


def model_of(request: Request) -> ALModel | BPModel:
    """Return the model itself, or what is made of blocks."""
    if isinstance(request.model, ALModel | BPModel):
        request.refuse("loss", "optimizer", "lr", why="the model has its own")
        request.no_changes("they are for blocks, of which a model is made")
        check_method(request.model, request.method)
        return request.model
    made = MADE_BY.get(request.method, to_al)
    known = [name for name, each in signature(made).parameters.items() if each.kind == KEYWORD]
    check_settings(request.changes, [*known, "num_classes"])
    options = request.given_options(lr="lr", optimizer="optimizer") | dict(request.changes)
    assert request.sample is not None
    sample, y = request.sample
    options.pop("num_classes", None)
    classes = request.classes
    if request.method != "bp":
        if classes is None:
            raise ValueError(
                "the last block gives no scores (B, C), and label codes are of one label a sample:"
                " give num_classes= for a network without a head, numbers as rows (B, 1); labels of"
                " pixels or tokens are for the other methods"
            )
        if made is to_al:
            options = {"recipe": recipe_for(y, request.loss)} | options
        elif of_numbers(y, request.loss):
            raise ValueError(
                "targets are numbers, and local rules compare classes: give an al method, whose"
                " recipes 'regression' and 'multi_label' predict numbers"
            )
        own = made(request.model, classes, sample, loss=request.loss, **options)
        if isinstance(y, Tensor) and are_numbers(y) and own.head is not None:
            _check_head(own.head.loss_fn)
        return own
    if classes is None:  # the loss compares what the blocks give
        options = {"head": nn.Identity()} | options
    model = to_bp(request.model, classes or 1, sample, **options)
    vars(model)["loss_fn"] = request.loss or model.loss_fn
    return model


def _check_head(loss: Any) -> None:
    """Refuse class numbers where the head compares numbers."""
    if loss in (F.mse_loss, F.binary_cross_entropy_with_logits):
        raise ValueError(
            f"targets are class numbers, and this recipe's head compares numbers ({loss.__name__}):"
            " give rows (B, D) of floats, or a recipe of classes, such as 'detached'"
        )


def recipe_for(y: Any, loss: Any) -> str:
    """Return the recipe for targets: of classes, or where a loss compares numbers, of these."""
    if not of_numbers(y, loss):
        return "detached"
    return "multi_label" if by_column(loss) else "regression"


def of_numbers(y: Any, loss: Any) -> bool:
    """Say whether a loss compares numbers, and not classes or shares of them."""
    if loss is None or not isinstance(y, Tensor) or not y.is_floating_point():
        return False
    return by_column(loss) or not (y.dim() == 2 and y.shape[1] > 1 and are_shares(y))
