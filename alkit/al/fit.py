"""Associated learning, local rules and backprop behind `alkit.fit`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from alkit.al.backprop import BPModel
from alkit.al.convert import to_al, to_bp
from alkit.al.model import ALModel
from alkit.al.rules import to_local
from alkit.al.settings import Associated, Backprop, Local, Settings
from alkit.al.train import check_method
from alkit.al.trainer import Trainer
from alkit.base.seeds import drawing_from, generator_for
from alkit.data.labels import are_numbers, are_shares
from alkit.engine.device import spread
from alkit.engine.evaluate import by_column
from alkit.engine.loop import train_epochs
from alkit.engine.plan import Plan, fit_on_ranks, meet
from alkit.engine.trainer import Record

# what a method takes, and what makes a model of blocks; of other methods `Associated`, `to_al`
TAKES: dict[str, type[Settings]] = {"bp": Backprop, "local": Local, "local_pipeline": Local}
MADE_BY: dict[type[Settings], Callable[..., Any]] = {Backprop: to_bp, Local: to_local}


def settings_of(method: str) -> type[Settings]:
    """Return the dataclass of a method's settings."""
    return TAKES.get(method, Associated)


def fit(plan: Plan) -> Record:
    """Run what was asked: a model as it is, or blocks, of which one is made."""
    if not plan.method.endswith("pipeline") and plan.on_ranks:
        raise ValueError(
            f"there are {plan.crew} ranks, and {plan.method} runs in one process: of its family"
            " only the pipeline runs on ranks"
        )
    with drawing_from(generator_for("made", plan.seed).get_state()):
        model = model_of(plan)  # what is added begins with weights of the seed
    return fit_on_ranks(_fit, model, plan)


def _fit(model: ALModel | BPModel, plan: Plan) -> Record:
    own = settings_of(plan.method)(**plan.settings)
    trainer = Trainer(
        spread(model, plan.own_device),
        plan.method,
        workers=plan.workers,
        threads=plan.threads,
        executor=plan.executor,
        seed=plan.seed,
        cuts=getattr(own, "cuts", None),
        compile=own.compile,
    )
    identity: dict[str, Any] = {"threads": plan.threads}
    identity |= {"compile": own.compile} if own.compile else {}
    identity |= {"clip": model.clip} if isinstance(model, BPModel) and model.clip else {}
    with _without_gradients(model):
        return train_epochs(trainer, plan, group=meet(plan.executor, model), identity=identity)


@contextmanager
def _without_gradients(model: nn.Module) -> Iterator[None]:
    """Leave no batch's gradients behind."""
    try:
        yield
    finally:
        for parameter in model.parameters():
            parameter.grad = None


def model_of(plan: Plan) -> ALModel | BPModel:
    """Return the model itself, or what is made of blocks."""
    kind = settings_of(plan.method)
    own = kind(**plan.settings)
    if isinstance(plan.model, ALModel | BPModel):
        plan.refuse("loss", "optimizer", "lr", why="the model has its own")
        if unused := own.making():
            raise TypeError(f"{next(iter(unused))}= is for blocks, of which a model is made")
        check_method(plan.model, plan.method)
        return plan.model
    made, options = MADE_BY.get(kind, to_al), own.making()
    options |= {} if plan.lr is None else {"lr": plan.lr}
    options |= {} if plan.optimizer is None else {"optimizer": plan.optimizer}
    if made is not to_bp:
        return _layered(plan, made, options)
    sample, _ = plan.sample or (None, None)
    if plan.classes is None:  # the loss compares what the blocks give
        options = {"head": nn.Identity()} | options
    model = to_bp(plan.model, plan.classes or 1, sample, **options)
    vars(model)["loss_fn"] = plan.loss or model.loss_fn
    return model


def _layered(plan: Plan, made: Callable[..., Any], options: dict[str, Any]) -> ALModel:
    """Return layers that train by themselves, for classes, or for numbers by a recipe of theirs."""
    sample, y = plan.sample or (None, None)
    if plan.classes is None:
        raise ValueError(
            "the last block gives no scores (B, C), and label codes are of one label a sample: give"
            " num_classes= for a network without a head, numbers as rows (B, 1); labels of pixels"
            " or tokens are for the other methods"
        )
    if made is to_al:
        options = {"recipe": recipe_for(y, plan.loss)} | options
    elif of_numbers(y, plan.loss):
        raise ValueError(
            "targets are numbers, and local rules compare classes: give an al method, whose recipes"
            " 'regression' and 'multi_label' predict numbers"
        )
    model: ALModel = made(plan.model, plan.classes, sample, loss=plan.loss, **options)
    if isinstance(y, Tensor) and are_numbers(y) and model.head is not None:
        _check_head(model.head.loss_fn)
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
