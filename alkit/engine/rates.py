"""Learning rates over a run: a scheduler of torch for each optimiser of a model.

    scheduler=partial(CosineAnnealingLR, T_max=epochs)            steps after each epoch
    scheduler=alkit.each_batch(partial(LinearLR, total_iters=100))        after each update

The state of a scheduler lies in the first group of its optimiser, so it goes along with it: into
checkpoints, and to ranks that hold other parts. Where a model has no scheduler its rates stay.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from alkit.base.arguments import given

STATE = "scheduler"  # in the first parameter group

Scheduler = Callable[[torch.optim.Optimizer], LRScheduler]


class EachBatch(partial):
    """Let a scheduler step after each update: `scheduler=alkit.each_batch(factory)`."""


def rates(model: Any) -> dict[str, float]:
    """Return the learning rates in use, by optimiser and parameter group ("0.enc.0", say)."""
    return {name: float(group["lr"]) for name, group in _groups(model).items()}


class Rates:
    """The rates of a run; on `close` the model has back the rates that it came with."""

    def __init__(self, model: Any, scheduler: Scheduler | None) -> None:
        self.model, self.by_batch, self.base = model, isinstance(scheduler, EachBatch), rates(model)
        self.before = {name: dict(group) for name, group in _groups(model).items()}
        there = [each for each in model.named_optimizers().values() if each is not None]
        self.made = [_made(scheduler, each) for each in there if scheduler is not None]
        self.hooks = [
            each.optimizer.register_step_post_hook(lambda *_, own=each: _step(own, {}))
            for each in (self.made if self.by_batch else ())
        ]

    def __str__(self) -> str:
        """Describe the course of the rates: runs that differ in it are different runs."""
        if not self.made:
            return "constant"
        first, every = self.made[0], "batches" if self.by_batch else "epochs"
        state = first.state_dict().items()
        plain = {k: v for k, v in state if isinstance(v, int | float | str) and k[0] != "_"}
        return f"{type(first).__name__} by {every} {plain}"

    def start_epoch(self) -> float:
        """Take up states that optimisers got from a file or another rank; return the first rate."""
        for each in self.made:
            if (state := each.optimizer.param_groups[0].get(STATE)) is not None:
                each.load_state_dict(dict(state))
        return next(iter(rates(self.model).values()), math.nan)

    def end_epoch(self, row: Mapping[str, Any]) -> None:
        """Step the schedulers that go by epochs; some of them look at results in the row."""
        for each in self.made if not self.by_batch else ():
            _step(each, row)

    def close(self) -> None:
        """Give the optimisers back as they came, except for their learned states."""
        for hook in self.hooks:
            hook.remove()
        for each in self.made:
            vars(each.optimizer).pop("step", None)  # torch's scheduler watches it
        for name, group in _groups(self.model).items():
            own = group["params"]
            group.clear()
            group.update(self.before[name] | {"params": own})


def _step(scheduler: LRScheduler, row: Mapping[str, Any]) -> None:
    # of ranks, one updates a part, and all know its rate: torch would warn of a step left out
    vars(scheduler.optimizer)["_opt_called"] = True
    if isinstance(scheduler, ReduceLROnPlateau) and row:
        scheduler.step(
            row["val_acc"] if scheduler.mode == "max" else row.get("val_loss", row["loss"])
        )
    else:
        scheduler.step()
    scheduler.optimizer.param_groups[0][STATE] = scheduler.state_dict()


def _made(factory: Any, optimizer: torch.optim.Optimizer) -> LRScheduler:
    found = factory(optimizer) if callable(factory) else factory
    if not isinstance(found, LRScheduler) or found.optimizer is not optimizer:
        raise TypeError(
            f"scheduler= is or makes {given(found)}, and each optimiser has a scheduler of its own:"
            " give what makes one: lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10)"
        )
    return found


def _groups(model: Any) -> dict[str, dict[str, Any]]:
    """Look the groups up anew each time: loading an optimiser's state replaces them."""
    return {
        f"{name}.{at}": group
        for name, optimizer in model.named_optimizers().items()
        for at, group in enumerate(optimizer.param_groups if optimizer is not None else ())
    }
