"""One call for every method."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from alkit.data.arguments import as_plain, as_whole, meant
from alkit.data.given import Loader, Splits, as_splits
from alkit.engine.compiled import Compile, check_compile
from alkit.engine.device import Names
from alkit.engine.evaluate import Metrics
from alkit.engine.group import Group
from alkit.engine.loop import Plan
from alkit.engine.modes import layout_kept, trained
from alkit.engine.optimizers import RATE, adam, rated
from alkit.engine.rates import SHAPES, Scheduler
from alkit.engine.record import Record
from alkit.engine.request import Request
from alkit.models.blocks import cut_once, ours
from alkit.records.checks import (
    check_hooks,
    check_measured,
    check_options,
    check_reach,
    look,
)
from alkit.records.methods import METHODS
from alkit.records.saved import made_of


def fit(
    model: Any,
    train: Any,
    validation: Any = None,
    test: Any = None,
    *,
    method: str | None = None,
    loss: Callable[[Any, Tensor], Tensor] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    lr: float | Mapping[str, float] | None = None,
    scheduler: Scheduler | None = None,
    scheduler_every: str = "epoch",
    end_factor: float = 0.1,
    epochs: int = 1,
    batch_size: int | None = None,
    device: Names | None = None,
    precision: str = "float32",
    clip: float | None = None,
    accumulate: int = 1,
    compile: Compile = False,
    executor: str | None = None,
    ranks: int = 1,
    workers: int | None = None,
    threads: int = 1,
    cuts: Sequence[int] | Literal["balanced"] | None = None,
    micro: int | None = None,
    augment: str = "none",
    drop_last: bool = False,
    checkpoint: str | Path | None = None,
    resume: str = "same",
    patience: int | None = None,
    stop_at_divergence: bool = False,
    evaluate_train: bool = False,
    metrics: Metrics | None = None,
    seed: int = 0,
    progress: bool = True,
    settings: Any = None,
    **changes: Any,
) -> Record:
    """Train for some epochs, choose the best one on validation, and test that one, once.

    Args:
        model: a list of blocks, an `nn.Sequential` or a network that `alkit.blocks` cuts; "bp"
            trains any other uncut, as one block. DTP asks for modules that have an inverse
            (`alkit.dtp.from_blocks`). Or a method's model:
            ALModel, BPModel, `alkit.delayed.Pipeline`, `alkit.elastic.Network`, `alkit.dtp.Net`.
        train: tensors, arrays or lists (x, y); a DataLoader or another iterable of batches; a
            Dataset; a frame; a data set or its name, which bring the other parts. x and y reach the
            first block and the loss as they are. Elastic training and split learning take all
            samples of a loader, in an order of their own.
        validation, test: likewise; without the first the last epoch is the best.
        method: of `alkit.METHODS`; by default "al_pipeline", or what the model is made for.
        loss: of (output, y), of all but split learning; default cross-entropy. With AL and local
            rules it is the head's, and the layers' are the recipe's or the rule's. One that is not
            torch's says `reduction` ("mean" over samples, or "sum") where batches are cut.
        optimizer: called as `optimizer(parameters, lr=...)`, at the rate that it has by itself if
            none is given; with a first argument called `named_parameters`, of pairs (name,
            parameter). What it returns holds all of them. Default: Adam at 1e-3 for every method
            that follows a gradient; DTP has its own.
        scheduler: of the rates: "constant" (None: that, but where a method's settings move them, as
            in elastic training and DTP), or "cosine" by epochs from each optimiser's rate to
            `end_factor` of it; or a function of an optimiser that makes one of torch's schedulers,
            which steps after every "epoch", or with `scheduler_every="batch"` after each update.
            The model has its own rates back afterwards.
        device: where to train: "cuda", "auto" for this machine's accelerator if it has one, or
            several, among which neighbouring layers are shared: ["cuda:0", "cuda:1"]. None leaves
            the model where it is. DTP and elastic training take one, split learning one for its
            heads and one for its tail. Ranks have one each, in turn, also of a kind's ("cuda"); a
            model that they were started for comes back to where it is. A loss that is a module
            goes to the device, too.
        precision: "float32": as the tensors are; "bfloat16", of all but split learning and DTP:
            operators that bear it are cast, weights are not; "float16", of bp and AL: likewise,
            and losses are scaled.
        clip: largest norm of the gradients of an optimiser: of all with bp and elastic training, of
            half a layer with AL, of a block with DTP, of one tensor with delayed gradients.
        accumulate: batches whose mean gradient makes a step, of bp and AL; for others see micro.
        compile: "steps", of bp, AL and local rules: a part's forward, backward and update are one
            call that holds no interpreter's lock, so workers with small blocks run side by side.
            The first batch waits for the compiler. Results are equal up to rounding, and in bits
            where both runs are compiled. A part runs as it is if it draws random numbers, or has
            another optimiser than SGD, Adam or AdamW as torch makes them.
        executor: see the method's `executors`. "ranks" trains on the ranks that this process is one
            of, by `alkit.launch` or under torchrun in `alkit.torchrun_group`, and each of them
            calls this with the same model and data. They return the same; only rank 0 writes, reads
            the checkpoint, and shows progress.
        ranks: processes to start for this call; 1: train in this one.
        workers: the most workers; of split learning, devices among which the samples are dealt.
        threads: operator threads of each worker. Bits are equal at equal numbers.
        cuts: the first block, or layer, of every worker but the first. "balanced", of delayed and
            flushed methods: modules of equal measured time, as near as blocks allow.
        micro: micro-batches of a batch, of methods that accumulate and of pipelined split learning.
            None: 1; of elastic training with workers as many as were published, 16.
        augment: how training images are changed; see `Part.batches`.
        drop_last: leave a last, smaller batch out.
        checkpoint: file to keep the run in. If it is there, the run goes on from it and ends in the
            bits of an uninterrupted one; a finished run is tested and not trained, or at a
            constant rate extended to more epochs. Workers, executor and progress may
            differ from the run that wrote it.
        resume: "same": a checkpoint of another run is refused, which is told by settings, shapes,
            optimisers and by what its weights make of the first rows; "anyway": go on from it if
            its tensors fit.
        patience: stop after so many epochs in a row without a better validation accuracy.
        stop_at_divergence: a loss that is not finite ends the run instead of raising.
        evaluate_train: also measure the accuracy on the training part, not augmented.
        metrics: by name, functions of (scores, y) of a whole part on the CPU that return a number,
            y class numbers or the targets; measured on validation and test beside the accuracy, or
            beside the loss where targets are no classes.
        batch_size: samples of a batch; None: the loader's own, or 32.
        settings, changes: the method's own, see its `settings`; beside `settings=`, what is left at
            its default here is as it is there.
    Raises:
        ValueError, TypeError: an unknown method, or an option that the method can't take: none is
            ignored. A checkpoint that is damaged or of another run.
        FloatingPointError: a loss is not finite.

    Example:
        >>> import torch, alkit
        >>> blocks = [torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)]
        >>> x, y = torch.randn(64, 8), torch.randint(3, (64,))
        >>> alkit.fit(blocks, (x, y), method="pipedream", lr=0.1, progress=False).losses.shape
        torch.Size([1])
    """
    seed, epochs, batch_size, threads, workers, micro, ranks, accumulate, patience = map(
        as_whole,
        (seed, epochs, batch_size, threads, workers, micro, ranks, accumulate, patience),
    )
    said = {"scheduler": scheduler, "micro": micro}
    micro = 1 if micro is None else micro
    check_options(
        lr=lr,
        loss=loss,
        device=device,
        threads=threads,
        workers=workers,
        micro=micro,
        ranks=ranks,
    )
    name = method or _made_for(model)
    if name not in METHODS:
        raise ValueError(
            f"unknown method {name!r}{meant(name, METHODS)}: give {', '.join(METHODS)}"
        )
    chosen = METHODS[name]
    room = chosen.room
    if name == "bp" and METHODS[_made_for(model)].room in ("elastic", "dtp"):  # a model of theirs
        model, loss = nn.Sequential(model), loss or model.loss
    if executor is not None and executor not in chosen.executors:
        allowed = ", ".join(chosen.executors) or "none: it brings its own processes or threads"
        raise ValueError(f"executor is {executor!r}: {name} takes {allowed}")
    check_compile(compile)
    if resume not in ("same", "anyway"):
        raise ValueError(f"resume is {resume!r}: give 'same' or 'anyway'")
    if ranks > 1 and executor not in (None, "ranks"):
        raise ValueError(f"ranks is {ranks} and executor {executor!r}: leave one of them out")
    if ranks > 1 and (joined := Group().ranks) > 1:
        raise ValueError(
            f"ranks is {ranks}, and this process is one of {joined} ranks already: give"
            ' executor="ranks" to train on these'
        )
    if stop_at_divergence and (ranks > 1 or executor == "ranks"):
        raise ValueError(
            "stop_at_divergence is given, and the ranks would not end together: leave it out, and"
            " look at what is raised, or train in one process"
        )
    if isinstance(cuts, int):
        raise TypeError(f"cuts is {cuts}: give a list, [{cuts}]")
    if balanced := isinstance(cuts, str):
        _check_balanced(room, name, cuts, checkpoint)
    if optimizer is not None:
        optimizer, lr = rated(optimizer, lr)
    elif _takes_default(room, model, settings, changes):
        optimizer, lr = adam, RATE if lr is None else lr
    if changes.get("schedule") in SHAPES and room != "dtp":
        raise TypeError(f"schedule= is no rate's: give scheduler={changes['schedule']!r}")
    data = as_splits(train, validation, test)
    said["batch_size"] = size = _batch_size(data, batch_size)
    check_measured(data, metrics, patience=patience)
    if isinstance(data.train, Loader):
        _check_loader(data.train, augment, drop_last)
    plan = Plan(
        epochs=epochs,
        batch_size=32 if size is None else size,
        seed=seed,
        scheduler="constant" if scheduler is None else scheduler,
        scheduler_every=scheduler_every,
        end_factor=end_factor,
        augment=augment,
        drop_last=drop_last,
        precision=precision,
        clip=clip,
        accumulate=accumulate,
        patience=patience,
        evaluate_train=evaluate_train,
        stop_at_divergence=stop_at_divergence,
    )
    whole, model = model, cut_once(model, uncut=name == "bp")
    request = Request(
        model=model,
        data=data,
        method=name,
        plan=plan,
        loss=loss,
        optimizer=optimizer,
        lr=lr,
        executor=executor,
        ranks=ranks,
        workers=workers,
        threads=threads,
        cuts=None if cuts is None or balanced else [*map(as_whole, cuts)],
        balanced_cuts=balanced,
        micro=micro,
        said=frozenset(name for name, value in said.items() if value is not None),
        device=device,
        compile=compile,
        metrics=metrics,
        checkpoint=checkpoint,
        resume=resume,
        progress=progress,
        settings=settings,
        changes={name: as_plain(each) for name, each in changes.items()},
    )
    found = look(
        model,
        request.data,
        loss,
        cast=precision != "float32",
        classes=request.changes.get("num_classes"),
        classify=chosen.room != "al" or name == "bp",
        parts=micro > 1 or ranks > 1 or room in ("elastic", "split"),  # these deal rows
    )
    several = [ranks, workers or 1, changes.get("devices", 1), getattr(settings, "devices", 1)]
    one_graph = name == "bp" or (room == "elastic" and max(several) == 1)
    if loss is not None and not one_graph and room != "split":  # which takes none
        check_reach(loss, model, found, name)
    if room != "al" and request.changes.get("num_classes") == found.width:  # as it is anyway
        own = {key: each for key, each in request.changes.items() if key != "num_classes"}
        request = replace(request, changes=own)
    sample = found.x, found.y
    request = replace(request, sample=sample, width=found.width, classes=found.classes)
    if ranks > 1 or room == "split":
        check_hooks(whole)
    kept = [] if ours(whole) else whole
    with trained(whole), layout_kept(kept):  # however it is cut
        record = import_module(f"alkit.{room}.fit").fit(request)
    if balanced:  # a file says which
        request = replace(request, cuts=list(record.model.cuts))
    return replace(record, made=made_of(request), classes=request.data.classes)


def _takes_default(room: str, model: Any, settings: Any, changes: Mapping[str, Any]) -> bool:
    """Say whether a call without an optimiser trains by the default one.

    Target propagation follows no gradient; a method's own model, a recipe, and settings that a file
    or a publication names bring their own optimiser.
    """
    own = {"recipe", "momentum", "weight_decay"} & set(changes)
    made = ours(model) and room != "elastic"  # a `Network` has none
    return room != "dtp" and not own and not made and settings is None


def _check_balanced(room: str, method: str, cuts: str, checkpoint: str | Path | None) -> None:
    """Refuse cuts="balanced" where nothing reads it.

    Raises:
        ValueError: says why.
    """
    if cuts != "balanced":
        raise ValueError(f"cuts is {cuts!r}: give block numbers, or 'balanced'")
    if room != "delayed":
        raise ValueError(
            f"cuts is 'balanced', and {method} can't take it: that is for delayed and flushed"
            " methods (AL's ranks cut by measured time anyway, elastic training lays itself out)"
        )
    if checkpoint is not None:
        raise ValueError(
            "cuts is 'balanced' and checkpoint is given: a run that goes on needs the cuts that it"
            " had, give those of a first call, list(record.model.cuts)"
        )


def _batch_size(data: Splits, given: int | None) -> int | None:
    """Return the samples of a batch: as said, or the loader's own."""
    own = data.train.batch_size if isinstance(data.train, Loader) else None
    if given is not None and own is not None and given != own:
        raise ValueError(
            f"batch_size is {given}, and the loader makes batches of {own}: leave batch_size out"
        )
    return own if given is None else given


def _check_loader(loader: Loader, augment: str, drop_last: bool) -> None:
    """Refuse what a loader does itself.

    Raises:
        ValueError: names it.
    """
    if augment != "none":
        raise ValueError(f"augment is {augment!r}, and a loader's samples are its own: do it there")
    if drop_last and not loader.drops:
        raise ValueError("drop_last is given beside a loader: give DataLoader(..., drop_last=True)")


def _made_for(model: Any) -> str:
    """Return the method that a model is made for."""
    kinds = {"BPModel": "bp", "Pipeline": "pipedream", "Network": "elastic", "Net": "dtp"}
    if getattr(model, "rule", ""):
        return "local_pipeline"
    own = [each.__name__ for each in type(model).__mro__ if each.__module__.startswith("alkit.")]
    return next((kinds[name] for name in own if name in kinds), "al_pipeline")
