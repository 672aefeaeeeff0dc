"""One call for every method."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from alkit.al.backprop import own_loss
from alkit.base.arguments import as_plain, check_settings, meant
from alkit.checks import check_call, check_copies, look
from alkit.data.given import Loader, as_splits
from alkit.engine.device import Names
from alkit.engine.evaluate import Metrics
from alkit.engine.modes import layout_kept, trained
from alkit.engine.optimizers import RATE, adam, rated
from alkit.engine.rates import Scheduler
from alkit.engine.trainer import Plan, Record
from alkit.methods import METHODS
from alkit.models.blocks import cut_once, ours
from alkit.models.looks import untouched
from alkit.saved import made_of

BATCH_SIZE = 32
INSTEAD = {  # of options that are asked for most
    "clip": "optimizer=alkit.clipped(torch.optim.Adam, NORM)",
    "patience": "callbacks=[alkit.patience(EPOCHS)]",
    "precision": "with torch.autocast(...): around the call",
}


def fit(
    model: Any,
    train: Any,
    validation: Any = None,
    test: Any = None,
    *,
    method: str | None = None,
    loss: Callable[[Any, Tensor], Tensor] | Literal["own"] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    lr: float | Mapping[str, float] | None = None,
    scheduler: Scheduler | None = None,
    epochs: int = 1,
    batch_size: int | None = None,
    device: Names | None = None,
    workers: int | None = None,
    threads: int = 1,
    ranks: int = 1,
    checkpoint: str | Path | None = None,
    metrics: Metrics | None = None,
    callbacks: Iterable[Callable[[dict[str, Any], Any], Any]] = (),
    seed: int = 0,
    progress: bool = True,
    **settings: Any,
) -> Record:
    """Train for some epochs, choose the best one on validation, and test that one, once.

    Args:
        model: a list of blocks, an `nn.Sequential` or a network that `alkit.blocks` cuts; "bp"
            trains any other uncut. DTP asks for modules that have an inverse
            (`alkit.dtp.from_blocks`). Or a method's own model, such as an ALModel.
        train: tensors or arrays (x, y); a DataLoader or another iterable of batches; a
            Dataset; a data set, which brings the other parts. x and y reach the first block and the
            loss as they are. Elastic training and split learning deal all samples of a loader anew.
        validation, test: likewise; without the first the last epoch is the best.
        method: of `alkit.METHODS`; by default "al_pipeline", or what the model is made for.
        loss: of (output, y), for all methods except split learning; default cross-entropy. "own"
            (bp) is the one in the output of a network that takes `labels=`. With AL and local rules
            it is for the head, and the recipe or rule has the losses of the layers. A loss that
            isn't from torch says `reduction` ("mean" over samples, or "sum") where batches are cut.
        optimizer: called as `optimizer(parameters, lr=...)`, at its own rate if none is given. This
            optimiser holds all of them. Default: Adam at 1e-3 for every method that follows a
            gradient; DTP has its own. See `alkit.clipped`.
        scheduler: makes one of torch's schedulers from an optimiser, which steps after every epoch,
            or in `alkit.each_batch` after each update: `partial(CosineAnnealingLR, T_max=epochs)`.
            The model has its own rates back afterwards.
        batch_size: samples of a batch; None: the loader's own, or 32.
        device: "cuda", "auto" for this machine's accelerator if it has one, or several, each with
            neighbouring layers (or ranks): ["cuda:0", "cuda:1"]. None leaves the model where it is.
            Split learning takes one for heads and one for tails.
        workers: the most workers; of split learning, devices that share the samples.
        threads: operator threads of each worker. Bits are equal at equal numbers.
        ranks: processes to start for this call. One of several ranks already (`alkit.launch`, or
            torchrun in `alkit.torchrun_group`) trains on these: each calls this with the same model
            and data, they return the same, and only rank 0 writes, and shows progress.
        checkpoint: file to keep the run in. If it is there, the run goes on from it and ends in the
            bits of an uninterrupted one; a finished run is tested, or at a constant rate extended
            to more epochs. Workers, ranks and progress may differ from the run that wrote it.
        metrics: by name, functions of (scores, y) of a whole part on the CPU that return a number,
            y class numbers or the targets; measured on validation and test.
        callbacks: called as `callback(row, model)` after each epoch. A dict that one returns
            becomes columns of the history; True ends the run. See `alkit.patience`, `alkit.best`.
        settings: the method's own: the fields of `alkit.METHODS[method].settings`.
    Raises:
        ValueError, TypeError: an unknown method, or an option that the method can't take. A
            checkpoint that is damaged or of another run.
        FloatingPointError: a loss is not finite.

    Example:
        >>> import torch, alkit
        >>> blocks = [torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)]
        >>> x, y = torch.randn(64, 8), torch.randint(3, (64,))
        >>> alkit.fit(blocks, (x, y), method="pipedream", lr=0.1, progress=False).losses.shape
        torch.Size([1])
    """
    name = method or _made_for(model)
    if name not in METHODS:
        near = meant(name, METHODS)
        raise ValueError(f"unknown method {name!r}{near}: give {', '.join(METHODS)}")
    chosen, own = METHODS[name], {key: as_plain(each) for key, each in settings.items()}
    there = [each.name for each in fields(chosen.settings) if each.init]
    for other in own.keys() & INSTEAD.keys() - {*there}:
        raise TypeError(f"{name} takes no {other}=: give {INSTEAD[other]}")
    check_settings(own, there, signature(fit).parameters)
    if name == "bp" and METHODS[_made_for(model)].room in ("elastic", "dtp"):  # a model of theirs
        model, loss = nn.Sequential(model), loss or model.loss
    if optimizer is not None:
        optimizer, lr = rated(optimizer, lr)
    elif _takes_default(chosen.room, model, own):
        optimizer, lr = adam, RATE if lr is None else lr
    if (by_itself := loss == "own") and name != "bp":
        raise ValueError(f"loss is 'own', and no block of {name} has labels: give method='bp'")
    loss = own_loss if loss == "own" else loss
    data = as_splits(train, validation, test)
    whole = {"epochs": epochs, "workers": workers, "threads": threads, "ranks": ranks}
    plan = Plan(
        data=data,
        model=cut_once(model, uncut=name == "bp", logits=loss is None or by_itself),
        method=name,
        settings=own,
        loss=loss,
        optimizer=optimizer,
        lr=lr,
        scheduler=scheduler,
        batch_size=_batch_size(data.train, as_plain(batch_size)),
        device=device,
        checkpoint=checkpoint,
        metrics=metrics,
        callbacks=tuple(callbacks),
        seed=as_plain(seed),
        progress=progress,
        **{name: as_plain(each) for name, each in whole.items()},
    )
    check_call(plan)
    with untouched(loss, *([] if ours(model) else plan.model)):
        plan = look(plan, chosen.room)
    check_copies(plan, chosen.room, model)
    with trained(model), layout_kept([] if ours(model) else model):  # however it is cut
        record: Record = import_module(f"alkit.{chosen.room}.fit").fit(plan)
    made = made_of(plan, getattr(record.model, "cuts", None))
    return replace(record, made=made, classes=data.class_names)


def _takes_default(room: str, model: Any, settings: Mapping[str, Any]) -> bool:
    """Say whether a call trains by Adam: target propagation, own models and recipes don't."""
    own = {"recipe", "momentum", "weight_decay"} & set(settings)
    made = ours(model) and room != "elastic"  # a `Network` has none
    return room != "dtp" and not own and not made


def _batch_size(train: Any, given: int | None) -> int:
    """Return the samples of a batch: as given, or as the loader has them."""
    own = train.batch_size if isinstance(train, Loader) else None
    if given is not None and own is not None and given != own:
        raise ValueError(f"batch_size is {given}, the loader makes batches of {own}: leave it out")
    return given if given is not None else own or BATCH_SIZE


def _made_for(model: Any) -> str:
    """Return the method that a model is made for."""
    kinds = {"BPModel": "bp", "Pipeline": "pipedream", "Network": "elastic", "Net": "dtp"}
    if getattr(model, "rule", ""):
        return "local_pipeline"
    own = [each.__name__ for each in type(model).__mro__ if each.__module__.startswith("alkit.")]
    return next((kinds[name] for name in own if name in kinds), "al_pipeline")
