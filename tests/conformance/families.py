"""The methods that the promises are held against, how each is called, and the plain loop."""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import alkit
from alkit.engine.trainer import Record

N, WIDTH, C, BATCH = 331, 8, 3, 32  # the last batch has 11 samples


@dataclass(frozen=True)
class Family:
    """A method as a user calls it.

    Attributes:
        method: of `alkit.METHODS`.
        exact: its gradient is backprop's, so a step is the plain loop's.
        one: options under which it is one network on one worker, for comparisons.
        own_loss: it takes the user's loss.
    """

    method: str
    exact: bool = False
    one: dict[str, Any] = field(default_factory=dict)
    own_loss: bool = True

    def fit(self, model: Any, *parts: Any, **options: Any) -> Record:
        """Train by the one line that all methods share."""
        return alkit.fit(model, *parts, method=self.method, progress=False, **options)


AL = {"own_loss": False}
FAMILIES = [
    Family("bp", exact=True),
    Family("al", **AL),
    Family("al_fm", **AL),
    Family("al_pipeline", **AL),
    Family("local_pipeline", **AL),
    Family("seq", exact=True),
    Family("1f1b", exact=True, one={"micro": 2}),
    Family("ddg"),
    Family("pipedream"),
    Family("fr"),
    Family("pipelearn", exact=True, one={"workers": 1}, own_loss=False),
    Family("elastic", exact=True, one={"freeze": "none"}),
    Family("dtp"),
]

EVERY = " ".join(each.method for each in FAMILIES)


def held(families: Iterable[Family] = FAMILIES) -> Any:
    """Return pytest's parameters: a promise is kept by these, a case each."""
    return pytest.mark.parametrize("family", families, ids=lambda each: each.method)


def rows(count: int = N, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return samples whose class is the place of the largest of three numbers."""
    x = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :C].argmax(1)


def net(outputs: int = C, seed: int = 0) -> nn.Sequential:
    """Return a network that ends in scores."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, outputs)
    )


def loader(count: int = N, shuffle: bool = True, **options: Any) -> DataLoader[Any]:
    """Return the most ordinary loader: shuffled, its last batch smaller."""
    return DataLoader(TensorDataset(*rows(count)), BATCH, shuffle=shuffle, **options)


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr)


def plain(
    model: nn.Module,
    batches: Sequence[tuple[Any, Any]],
    loss: Callable[[Any, Any], Tensor] = cross_entropy,
    lr: float = 0.1,
) -> nn.Module:
    """Return a copy of the model after the loop that every user knows."""
    model = copy.deepcopy(model).train()
    steps = sgd(model.parameters(), lr)
    for x, y in batches:
        steps.zero_grad()
        loss(model(x), y).backward()
        steps.step()
    return model


def flat(model: nn.Module) -> Tensor:
    """Return all parameters as one vector."""
    return torch.cat([each.detach().double().flatten() for each in model.parameters()])


def accuracy(scores: Tensor, y: Tensor) -> float:
    return (scores.argmax(1) == y).double().mean().item()
