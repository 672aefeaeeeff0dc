"""Random AL stacks, everything about a model that training may change, and calls on ranks."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit import AE, AL, ENC, ALModel, launch, one_hot
from alkit.delayed import Pipeline, Trained, train_epoch
from alkit.engine.optimizers import adam
from alkit.engine.run import Run

CLASSES, WIDTH, CODE = 3, 6, 5


def dense_layer(index: int, dropout: float = 0.3, batch_norm: bool = True) -> AL:
    """Return an AL layer (WIDTH -> WIDTH) with dropout and batch norm in f, and dropout in b."""
    norm = nn.BatchNorm1d(WIDTH) if batch_norm else nn.Identity()
    f = nn.Sequential(nn.Linear(WIDTH, WIDTH), norm, nn.ReLU(), nn.Dropout(dropout))
    b = nn.Sequential(nn.Dropout(dropout), nn.Linear(WIDTH, CODE), nn.Tanh())
    code = CODE if index else CLASSES
    g, h = nn.Sequential(nn.Linear(code, CODE), nn.Tanh()), nn.Linear(CODE, code)
    return AL(ENC(f, b), AE(g, h, F.mse_loss if index else F.cross_entropy), lr=1e-2)


def dense_model(layers: int, seed: int = 0, **options: object) -> ALModel:
    """Return the same model for the same seed."""
    torch.manual_seed(seed)
    return ALModel([dense_layer(index, **options) for index in range(layers)])


def made_batches(count: int, size: int = 4, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Return batches of made-up numbers with one-hot labels."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, WIDTH, generator=generator),
            one_hot(torch.randint(CLASSES, (size,), generator=generator), CLASSES),
        )
        for _ in range(count)
    ]


def full_state(model: Any) -> dict[str, Tensor]:
    """Return parameters, buffers and optimiser states by name: the model's own tensors."""
    state = dict(model.state_dict())
    for name, optimizer in model.named_optimizers().items():
        states = optimizer.state_dict()["state"] if optimizer is not None else {}
        for at, values in states.items():
            state |= {f"{name}.{at}.{key}": value for key, value in values.items()}
    return state


def state_of(model: ALModel) -> dict[str, Tensor]:
    """Return copies of them."""
    return {name: value.clone() for name, value in full_state(model).items()}


def differences(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Name the tensors that are not equal bit for bit."""
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def random_cuts(layers: int, workers: int, rng: random.Random) -> list[int]:
    return sorted(rng.sample(range(1, layers), workers - 1))


def run_in_any_order(schedule, stages, batches, choose):
    """Run on one thread; `choose` says of how many lanes that could go on which one does."""

    class Chosen(Run):
        def pick(self, own, *, urgent=True):
            if not (ready := sorted(lane for lane in self.ready if lane in own)):
                return None
            lane = ready[choose(len(ready))]
            self.ready.remove(lane)
            return self.next[lane]

    run = Chosen(schedule, stages)
    run.here(batches, 1)
    return run.timeline()


def on_ranks(
    calls: Mapping[str, Callable[..., Any]], ranks: int = 2, **own: Any
) -> dict[str, list[Any]]:
    """Make all calls in one start of processes; return what each rank found, by name."""
    each = launch(_in_turn, dict(calls), own, ranks=ranks)
    return {name: [found[name] for found in each] for name in calls}


def _in_turn(calls: Mapping[str, Callable[..., Any]], own: Mapping[str, Any]) -> dict[str, Any]:
    return {name: call(**own) for name, call in calls.items()}


def refused(call: Callable[..., Any], **own: Any) -> str:
    """Return what a rank says that does not begin; every other one must say so, too."""
    with pytest.raises((RuntimeError, ValueError)) as told:
        call(**own)
    return str(told.value)


def train_blocks(
    blocks: Iterable[nn.Module],
    loss: Callable[[Any, Any], Tensor],
    batches: Iterable[tuple[Any, Any]],
    *,
    method: str = "pipedream",
    cuts: Sequence[int] = (),
    executor: str = "single",
    optimizer: Callable[..., torch.optim.Optimizer] = adam,
    **settings: Any,
) -> Trained:
    """Cut blocks into modules and train them once on every batch."""
    pipeline = Pipeline(blocks, loss, cuts, optimizer)
    return train_epoch(pipeline, batches, method, executor, **settings)
