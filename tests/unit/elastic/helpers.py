"""Small networks and data in float64, and the plain loop that all else is compared with."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

import alkit
from alkit.elastic import Examples, Network, Recipe, Settings, bert_classifier, vit_classifier
from alkit.elastic.examples import order
from alkit.elastic.freeze import Observation, cap
from alkit.elastic.held import Held
from alkit.elastic.layout import Layout
from alkit.elastic.memory import held
from alkit.engine.record import Record
from alkit.models.encoder import BertSizes, ViTSizes
from tests.helpers import on_ranks

LAYERS = 4


def make_vit(dropout: float = 0.0) -> Network:
    sizes = ViTSizes(LAYERS, 16, 2, 32, patch=4, image=8, channels=1, classes=3, dropout=dropout)
    return vit_classifier(sizes, seed=3).double()


def make_bert(dropout: float = 0.0) -> Network:
    sizes = BertSizes(LAYERS, 16, 2, 32, vocabulary=30, tokens=7, dropout=dropout)
    return bert_classifier(sizes, 2, seed=3).double()


def images(samples: int = 24, **options: Any) -> Examples:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 1, 8, 8, generator=generator, dtype=torch.float64)
    return Examples(x, torch.arange(samples) % 3, **options)


def texts(samples: int = 24) -> Examples:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 30, (samples, 7), generator=generator)
    lengths = torch.randint(2, 8, (samples, 1), generator=generator)
    mask = torch.arange(7) < lengths
    segments = (torch.arange(7) >= lengths // 2).long()
    return Examples((tokens * mask, segments, mask), torch.arange(samples) % 2)


TASKS = {"vit": (make_vit, images), "bert": (make_bert, texts)}


@dataclass
class Found:
    """A record and its details at once, losses as (steps,), and the weights."""

    record: Record

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what pickle asks an empty one for
            raise AttributeError(name)
        return getattr(self.record if hasattr(self.record, name) else self.record.details, name)

    @property
    def losses(self) -> Tensor:
        return self.record.losses.flatten()

    @property
    def state(self) -> dict[str, Tensor]:
        own = self.record.model.state_dict()
        return {name: tensor.cpu() for name, tensor in own.items()}


def train(network: Network, data: Examples, settings=None, **options: Any) -> Found:
    """Call the one door; options that are names of settings are set there."""
    names = {each.name for each in fields(Settings)} & set(options)
    own = replace(settings or Settings(), **{name: options.pop(name) for name in names})
    options = {"progress": False} | own.options() | options
    return Found(alkit.fit(network, data, method="elastic", **options))


def training(task: str = "vit", settings: Settings | None = None, **options: Any) -> Callable:
    """Return a call of `train`, to be made on ranks."""
    make, data = TASKS[task]
    return partial(train, make(), data(), settings or SETTINGS, **options)


def on_devices(calls: Mapping[str, Callable[..., Any]], ranks: int = 2) -> dict[str, list[Any]]:
    """Return by name what each rank found: all calls in one start of processes."""
    return on_ranks(calls, ranks, devices=ranks)


PARTS = ["weights", "frozen", "gradients", "moments", "message"]
ANY = 10**12


def calculated(network: Network, settings: Settings, layout: Layout) -> list[Held]:
    """Return what a rank of each stage holds beside activations."""
    return [held(network, settings.recipe, layout, stage) for stage in range(layout.stages)]


def parts(own: Held) -> dict[str, int]:
    return {name: own.plain()[name] for name in PARTS}


@dataclass(frozen=True)
class Table:
    """Freezes counts[T - 1] layers at evaluation T, then what the last one says."""

    counts: tuple[int, ...]

    def __call__(self, moment: Observation) -> int:
        return self.counts[min(moment.evaluation, len(self.counts)) - 1]


@dataclass
class Plain:
    """What the plain loop left."""

    losses: list[float]
    state: dict[str, Tensor]


def plain(network: Network, data: Examples, settings: Settings, alpha: float = 1 / 3) -> Plain:
    """Train in one process without pipeline, replicas or cache: freezing only, one optimiser."""
    network = copy.deepcopy(network).train()
    recipe, own = settings.recipe, list(network.parameters())
    decays = [p for p in own if p.dim() > 1 and p.shape[0] > 1]
    others = [p for p in own if not (p.dim() > 1 and p.shape[0] > 1)]
    groups = [
        {"params": decays, "weight_decay": recipe.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    if recipe.optimizer == "sgd":
        optimizer = torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum)
    else:
        optimizer = torch.optim.AdamW(groups, lr=recipe.lr)
    losses, done = [], 0
    total = settings.epochs * len(data)
    for epoch in range(settings.epochs):
        frozen = cap(LAYERS, alpha, epoch) if settings.freeze == "schedule" else 0
        for unit in list(network.units)[: 1 + 2 * frozen if frozen else 0]:
            unit.requires_grad_(False).eval()
        for batch in order(len(data), settings.seed, epoch).split(settings.batch):
            x = data.inputs(batch, epoch)
            for unit in network.units:
                x = unit(x)
            loss = network.loss(x, data.y[batch])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            trained = [p for p in own if p.grad is not None]
            if recipe.clip is not None:
                nn.utils.clip_grad_norm_(trained, recipe.clip)
            done += len(batch)
            for group in optimizer.param_groups:
                group["lr"] = recipe.lr * rate(recipe, done, total)
            optimizer.step()
            losses.append(loss.item())
    return Plain(losses, network.state_dict())


def rate(recipe: Recipe, done: int, total: int) -> float:
    rising = recipe.warmup * total
    if done < rising:
        return done / rising
    return (1 + math.cos(math.pi * (done - rising) / (total - rising))) / 2


def close(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    """Compare weights: of runs, or as they are."""
    found, expected = (getattr(each, "state", each) for each in (found, expected))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=tolerance, msg=name)


def same(found: Found, expected: Plain) -> None:
    """Compare losses and weights with those of the plain loop."""
    torch.testing.assert_close(found.losses.tolist(), expected.losses, rtol=0, atol=1e-12)
    close(found, expected)


SETTINGS = Settings(
    epochs=4, batch=8, micro=2, recipe=Recipe(lr=3e-3, weight_decay=0.01, clip=0.5, warmup=0.1)
)


@cache
def expected(task: str = "vit") -> Plain:
    """Return what the plain loop leaves with the settings that most tests begin with."""
    make, data = TASKS[task]
    return plain(make(), data(), SETTINGS)
