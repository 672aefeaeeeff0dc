"""Learning rates over the epochs of a run: by a word, or by one of torch's schedulers.

    constant    lr(e) = base
    cosine      lr(e) = base q + end (1 - q),  q = (1 + cos(pi e / epochs)) / 2,  e from 0
    a factory   scheduler(optimizer), of every optimiser; it steps after each epoch, or each update

`end` is the same fraction of every optimiser's own base rate. The publications of associated
learning take cosine from 1e-4 to 1e-5 for images and a constant 2.5e-4 for texts.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from alkit.data.arguments import given

# what is left of a rate when so much of a run is done, of so much in all
SHAPES: dict[str, Callable[[float, float], float]] = {
    "constant": lambda done, total: 1.0,
    "linear": lambda done, total: max(0.0, 1 - done / total),
    "cosine": lambda done, total: (1 + math.cos(math.pi * done / total)) / 2,
}
SCHEDULERS = ("constant", "cosine")
EVERY = ("epoch", "batch")
STEPS = "scheduled"  # in a parameter group, how often its scheduler has stepped: it is saved there

Scheduler = str | Callable[[torch.optim.Optimizer], LRScheduler]


class _Optimized(Protocol):
    def named_optimizers(self) -> dict[str, torch.optim.Optimizer | None]: ...


def rate_at(base: float, scheduler: str, epoch: int, epochs: int, end_factor: float) -> float:
    """Return the learning rate of an epoch, counted from 0."""
    q = SHAPES[scheduler](epoch, epochs)
    return base * q + base * end_factor * (1 - q)


def rates(model: _Optimized) -> dict[str, float]:
    """Return the learning rates in use, by optimiser and parameter group ("0.enc.0", say)."""
    return {name: float(group["lr"]) for name, group in _groups(model).items()}


def check_scheduler(scheduler: Any, every: str, end_factor: float) -> None:
    """Refuse what gives no rates, before a model is made.

    Raises:
        ValueError, TypeError: says what to give.
    """
    factory = "lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10)"
    if isinstance(scheduler, LRScheduler):
        raise TypeError(
            f"scheduler= is a {type(scheduler).__name__} of its own optimiser, and every part has"
            f" one: give what makes them: {factory}"
        )
    if not callable(scheduler) and scheduler not in SCHEDULERS:
        raise ValueError(
            f"unknown scheduler {scheduler!r}: give {', '.join(SCHEDULERS)}, or what makes one:"
            f" {factory}"
        )
    if every not in EVERY:
        raise ValueError(f"scheduler_every is {every!r}: give {' or '.join(EVERY)}")
    if every == "batch" and not callable(scheduler):
        raise ValueError(f"scheduler_every is 'batch', and {scheduler!r} goes by epochs")
    if not (math.isfinite(end_factor) and end_factor >= 0):
        raise ValueError(f"end_factor is {end_factor}: it must be finite and not negative")


class Rates:
    """The rates of a run. Those that the model came with are the base."""

    def __init__(
        self,
        model: _Optimized,
        scheduler: Scheduler,
        epochs: int,
        end_factor: float = 0.1,
        every: str = "epoch",
    ) -> None:
        check_scheduler(scheduler, every, end_factor)
        self.model, self.epochs, self.end_factor, self.every = model, epochs, end_factor, every
        self.base = rates(model)
        self.before = {name: _options(group) for name, group in _groups(model).items()}
        self.word = "" if callable(scheduler) else scheduler
        self.made: dict[str, LRScheduler] = {}
        self.hooks: list[Any] = []
        for name, each in model.named_optimizers().items():
            if each is not None and callable(scheduler):
                self.made[name] = _made(scheduler, each)
                if every == "batch":
                    step = _stepping(self.made[name])
                    self.hooks.append(each.register_step_post_hook(step))

    def __str__(self) -> str:
        """Say what the rates follow: runs with another word are other runs."""
        if not self.made:
            return self.word or "constant"
        first = next(iter(self.made.values()))
        plain = {k: v for k, v in first.state_dict().items() if isinstance(v, int | float | str)}
        return f"{type(first).__name__} an {self.every} {plain}"

    def check(self, *, validated: bool) -> None:
        """Refuse a scheduler that would look at what nobody measures.

        Raises:
            ValueError: says what it looks at.
        """
        for each in self.made.values():
            if isinstance(each, ReduceLROnPlateau) and self.every == "batch":
                raise ValueError("ReduceLROnPlateau looks at epochs: leave scheduler_every out")
            if isinstance(each, ReduceLROnPlateau) and each.mode == "max" and not validated:
                raise ValueError(
                    "ReduceLROnPlateau(mode='max') follows the validation accuracy: give a"
                    " validation part, or mode='min', which follows the training loss without one"
                )

    @property
    def follow_loss(self) -> bool:
        """Whether a scheduler looks at the validation loss."""
        return any(
            isinstance(each, ReduceLROnPlateau) and each.mode == "min"
            for each in self.made.values()
        )

    def start_epoch(self, epoch: int) -> float:
        """Set all rates for an epoch and return the first of them, if any."""
        if self.word:
            for name, group in _groups(self.model).items():
                where = self.word, epoch, self.epochs, self.end_factor
                group["lr"] = rate_at(self.base[name], *where)
        return next(iter(rates(self.model).values()), math.nan)

    def end_epoch(self, row: Mapping[str, Any]) -> None:
        """Step the schedulers that go by epochs; the row is for those that look at results."""
        with _quiet():
            for each in self.made.values() if self.every == "epoch" else ():
                _step(each, row)

    def resume(self, rows: list[Any]) -> None:
        """Bring schedulers to where the loaded optimisers are, by the rows so far."""
        for name, each in self.made.items():
            groups = each.optimizer.param_groups
            there = [_options(group) for group in groups]
            for at, group in enumerate(groups):
                group["lr"] = group.get("initial_lr", self.base[f"{name}.{at}"])
            with _quiet():
                for at in range(there[0].get(STEPS, 0)):
                    _step(each, rows[at] if self.every == "epoch" else {})
            for group, own in zip(groups, there, strict=True):
                group.update(own)

    def close(self) -> None:
        """Give the optimisers back as they came, but for what they have learned."""
        for hook in self.hooks:
            hook.remove()
        for each in self.made.values():
            vars(each.optimizer).pop("step", None)  # torch's scheduler watches it
        for name, group in _groups(self.model).items():
            for key in set(group) - {"params"} - set(self.before[name]):
                del group[key]
            group.update(self.before[name])


@contextmanager
def scheduled(
    model: _Optimized, scheduler: Scheduler, epochs: int, end_factor: float, every: str = "epoch"
) -> Iterator[Rates]:
    """Yield the rates of a run; the model has its own back at the end.

    Args:
        scheduler: of SCHEDULERS, or a function of an optimiser.
        every: how often torch's step: after every "epoch", or every "batch" that updates.
    Raises:
        ValueError, TypeError: an unknown word, what makes no scheduler, or an end factor that gives
            no rate.
    """
    made = Rates(model, scheduler, epochs, end_factor, every)
    try:
        yield made
    finally:
        made.close()


def _made(factory: Callable[..., Any], optimizer: torch.optim.Optimizer) -> LRScheduler:
    found = factory(optimizer)
    if not isinstance(found, LRScheduler):
        raise TypeError(
            f"scheduler= makes {given(found)}: it must return one of torch's schedulers"
        )
    if found.optimizer is not optimizer:
        raise ValueError("scheduler= makes a scheduler of another optimiser than it was given")
    return found


def _stepping(scheduler: LRScheduler) -> Callable[..., None]:
    def step(*_: Any) -> None:
        _step(scheduler, {})

    return step


def _step(scheduler: LRScheduler, row: Mapping[str, Any]) -> None:
    if isinstance(scheduler, ReduceLROnPlateau):
        name = "val_acc" if scheduler.mode == "max" else "val_loss"
        scheduler.step(row.get(name, row["loss"]))
    else:
        scheduler.step()
    for group in scheduler.optimizer.param_groups:
        group[STEPS] = group.get(STEPS, 0) + 1


@contextmanager
def _quiet() -> Iterator[None]:
    """Say nothing of steps without updates: of ranks, one updates a part, and all know its rate."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
        yield


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _groups(model: _Optimized) -> dict[str, dict[str, Any]]:
    """Look the groups up anew each time: loading an optimiser's state replaces them."""
    return {
        f"{name}.{at}": group
        for name, optimizer in model.named_optimizers().items()
        for at, group in enumerate(optimizer.param_groups if optimizer is not None else ())
    }
