"""Associated learning, local rules and backprop behind `alkit.fit`: settings, model and trainer."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from alkit.al.backprop import BPModel
from alkit.al.bridges import Pool
from alkit.al.convert import to_al, to_bp
from alkit.al.layers import label_rows
from alkit.al.model import ALModel
from alkit.al.recipes import Recipe
from alkit.al.rules import Rule, to_local
from alkit.al.train import Trained, check_method, train_epoch
from alkit.data.labels import are_numbers, are_shares
from alkit.engine.compiled import Compile
from alkit.engine.device import spread
from alkit.engine.evaluate import by_column
from alkit.engine.loop import train_epochs
from alkit.engine.random import random_from
from alkit.engine.trainer import Plan, Record, fit_on_ranks, meet
from alkit.engine.trainer import Trainer as Base


@dataclass(frozen=True)
class Settings:
    """Settings of all of them.

    Attributes:
        pool: see `alkit.to_al`.
        num_classes: scores of a head that is made, for a network without one.
        compile: "steps", see `alkit.train_epoch`.
    """

    pool: Pool | Sequence[Pool] | None = None
    num_classes: int | None = None
    compile: Compile = False

    def __post_init__(self) -> None:
        if isinstance(cuts := getattr(self, "cuts", None), str):
            raise TypeError(f"cuts is {cuts!r}: give a list of layer numbers")

    def making(self) -> dict[str, Any]:
        """Return the given options that make a model of blocks."""
        others = ("num_classes", "compile", "cuts")
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {n: value for n, value in found.items() if value is not None and n not in others}


@dataclass(frozen=True)
class Associated(Settings):
    """Of al, al_m, al_fm and al_pipeline.

    Attributes:
        recipe, code_dim, read: see `alkit.to_al`.
        cuts: of the pipeline: the first layer of each worker but the first; by default workers are
            free, and ranks hold as many layers each.
    """

    recipe: str | Recipe | None = None
    code_dim: int | None = None
    read: str | None = None
    cuts: Sequence[int] | None = None


@dataclass(frozen=True)
class Local(Settings):
    """Of local and local_pipeline.

    Attributes:
        rule, read: see `alkit.to_local`.
        cuts: as in `Associated`.
    """

    rule: str | Rule | None = None
    read: str | None = None
    cuts: Sequence[int] | None = None


@dataclass(frozen=True)
class Backprop(Settings):
    """Of bp.

    Attributes:
        head, channels_last: see `alkit.to_bp`.
        clip: largest norm of all gradients together.
    """

    head: nn.Module | None = None
    channels_last: bool | None = None
    clip: float | None = None


# settings of a method, and the maker of its model; of other methods `Associated`, `to_al`
TAKES: dict[str, type[Settings]] = {"bp": Backprop, "local": Local, "local_pipeline": Local}
MADE_BY: dict[type[Settings], Callable[..., Any]] = {Backprop: to_bp, Local: to_local}


def settings_of(method: str) -> type[Settings]:
    """Return the dataclass of the settings of a method."""
    return TAKES.get(method, Associated)


def fit(plan: Plan) -> Record:
    """Run a plan: with a model as it is, or with a model that is made of blocks."""
    if plan.on_ranks and not plan.method.endswith("pipeline"):
        said = f"there are {plan.crew} ranks, and {plan.method} runs in one process"
        raise ValueError(f"{said}: of its family only the pipeline runs on ranks")
    with random_from("made", plan.seed):
        model = model_of(plan)  # added parts begin with weights of the seed
    return fit_on_ranks(_fit, model, plan)


def _fit(model: ALModel | BPModel, plan: Plan) -> Record:
    own, names = settings_of(plan.method)(**plan.settings), ("workers", "threads", "seed")
    options: dict[str, Any] = {name: getattr(plan, name) for name in (*names, "executor")}
    options |= {"cuts": getattr(own, "cuts", None), "compile": own.compile}
    trainer = Trainer(spread(model, plan.own_device), plan.method, options)
    identity: dict[str, Any] = {"threads": plan.threads}
    identity |= {"compile": own.compile} if own.compile else {}
    identity |= {"clip": model.clip} if isinstance(model, BPModel) and model.clip else {}
    try:
        return train_epochs(trainer, plan, group=meet(plan, model), identity=identity)
    finally:
        model.zero_grad(set_to_none=True)  # no gradients of a batch stay behind


def model_of(plan: Plan) -> ALModel | BPModel:
    """Return the model itself, or one made of blocks."""
    kind = settings_of(plan.method)
    options, made = kind(**plan.settings).making(), MADE_BY.get(kind, to_al)
    if isinstance(plan.model, ALModel | BPModel):
        plan.refuse("loss", "optimizer", "lr", why="the model has its own")
        if options:
            raise TypeError(f"{next(iter(options))}= is for blocks, of which a model is made")
        check_method(plan.model, plan.method)
        return plan.model
    options |= {} if plan.lr is None else {"lr": plan.lr}
    options |= {} if plan.optimizer is None else {"optimizer": plan.optimizer}
    if made is not to_bp:
        return _layered(plan, made, options)
    sample, _ = plan.sample or (None, None)
    if plan.classes is None:  # the loss compares the output of the blocks
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
            " num_classes= for a network without a head, numbers as rows (B, 1), or another method"
        )
    if made is to_al:
        options = {"recipe": recipe_for(y, plan.loss)} | options
    elif of_numbers(y, plan.loss):
        said = "give an al method, whose recipes 'regression' and 'multi_label' predict numbers"
        raise ValueError(f"targets are numbers, and local rules compare classes: {said}")
    model: ALModel = made(plan.model, plan.classes, sample, loss=plan.loss, **options)
    head = None if model.head is None else model.head.loss_fn
    numbers = head in (F.mse_loss, F.binary_cross_entropy_with_logits)
    if numbers and isinstance(y, Tensor) and are_numbers(y):
        said = "give rows (B, D) of floats, or a recipe of classes, such as 'detached'"
        raise ValueError(
            f"targets are class numbers, and this recipe's head compares numbers: {said}"
        )
    return model


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


@dataclass
class Trainer(Base):
    """A model, and the options of `alkit.train_epoch` that an epoch of it is run with."""

    model: ALModel | BPModel
    method: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def loss(self) -> Callable[[Any, Tensor], Tensor]:
        """The loss of backprop, or of the autoencoder of the first level."""
        if isinstance(self.model, ALModel) and self.model.read == "code":
            return partial(_of_codes, model=self.model)
        whole = self.model if isinstance(self.model, BPModel) else self.model.head
        assert whole is not None
        return whole.loss_fn

    def train(self, batches: Iterable[tuple[Any, Tensor]]) -> Trained:
        """Train once on every batch."""
        return train_epoch(self.model, batches, self.method, **self.options)

    def row(self, trained: Trained) -> dict[str, float]:
        """Return both losses of every layer, from 1, and the loss of the head."""
        row = {} if trained.head is None else {"head": trained.head.mean().item()}
        per_layer = trained.losses.mean(0)
        if per_layer.shape[1] == 2:
            for at, (associated, autoencoder) in enumerate(per_layer.tolist(), 1):
                row |= {f"associated_{at}": associated, f"autoencoder_{at}": autoencoder}
        return row


def _of_codes(scores: Tensor, y: Tensor, *, model: ALModel) -> Tensor:
    own = model[0].ae
    return own.loss_fn(scores, label_rows(y, own.g, model.num_classes))
