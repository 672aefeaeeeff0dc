"""Small networks and data in float64, and the plain loop that all else is compared with."""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

import alkit
from alkit.data.parts import Pairs
from alkit.elastic import Network, bert_classifier, trainer, vit_classifier
from alkit.elastic.encoder import BertSizes, ViTSizes
from alkit.elastic.freeze import cap
from alkit.elastic.layout import Layout
from alkit.elastic.pipeline import Trained
from alkit.elastic.stage import Replica
from alkit.elastic.trainer import order
from alkit.elastic.units import is_dropped, tensors_of
from alkit.engine.trainer import Record

LAYERS = 4


def make_vit(dropout: float = 0.0) -> Network:
    sizes = ViTSizes(LAYERS, 16, 2, 32, patch=4, image=8, channels=1, classes=3, dropout=dropout)
    return vit_classifier(sizes, seed=3).double()


def make_bert(dropout: float = 0.0) -> Network:
    sizes = BertSizes(LAYERS, 16, 2, 32, vocabulary=30, tokens=7, dropout=dropout)
    return bert_classifier(sizes, 2, seed=3).double()


def images(samples: int = 24) -> Pairs:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 1, 8, 8, generator=generator, dtype=torch.float64)
    return Pairs(x, torch.arange(samples) % 3)


def texts(samples: int = 24) -> Pairs:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 30, (samples, 7), generator=generator)
    lengths = torch.randint(2, 8, (samples, 1), generator=generator)
    mask = torch.arange(7) < lengths
    segments = (torch.arange(7) >= lengths // 2).long()
    return Pairs((tokens * mask, segments, mask), torch.arange(samples) % 2)


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


def train(network: Network, data: Pairs, settings=None, **options: Any) -> Found:
    """Call the one door."""
    options = {"progress": False, "freeze": "schedule"} | (settings or {}) | options
    return Found(alkit.fit(network, data, method="elastic", **options))


def training(task: str = "vit", settings: Any = None, **options: Any) -> Callable:
    """Return a call of `train`, to be made on ranks."""
    make, data = TASKS[task]
    return partial(train, make(), data(), settings or SETTINGS, **options)


def holding(call: Callable[[], Found]) -> tuple[Found, list[tuple[list[int], list[int]]], bool]:
    """Make a call; return also, an epoch, of which units this rank has weights, and moments.

    And whether it has the whole network at the end.
    """
    there, run = [], trainer.run_epoch

    def looked(replica: Replica, *rest: Any) -> Trained:
        found, own = run(replica, *rest), list(map(tensors_of, replica.network.units))
        weights = [n for n, each in enumerate(own) if not any(map(is_dropped, each))]
        state = replica.units.optimizer.state
        moments = [n for n, each in enumerate(own) if any(tensor in state for tensor in each)]
        there.append((weights, moments))
        return found

    with patch.object(trainer, "run_epoch", looked):
        found = call()
    return found, there, not any(map(is_dropped, found.record.model.parameters()))


def shared_out(network: Network, layout: Layout, rank: int) -> tuple[list[int], list[int]]:
    """Return of which units a rank is to have weights, and moments."""
    if rank >= layout.stages * layout.replicas:
        return [], []
    low, high = layout.bounds[rank % layout.stages]
    front = [] if rank % layout.stages else range(layout.start)
    return [*front, *range(low, high)], [*range(max(low, network.first(layout.frozen)), high)]


def adamw(parameters: Iterable[Any], lr: float = 1e-3, decay: float = 0.01) -> torch.optim.AdamW:
    """Return AdamW that lets matrices decay: no biases, norms or positions."""
    own = list(parameters)
    decays = [p.dim() > 1 and len(p) > 1 for p in own]
    groups = [
        {"params": [p for p, d in zip(own, decays, strict=True) if d == one], "weight_decay": rate}
        for one, rate in ((True, decay), (False, 0))
    ]
    return torch.optim.AdamW(groups, lr=lr)


sgd = partial(torch.optim.SGD, momentum=0.9)


@dataclass
class Plain:
    """What the plain loop left."""

    losses: list[float]
    state: dict[str, Tensor]


def plain(network: Network, data: Pairs, settings: Any, alpha: float = 1 / 3) -> Plain:
    """Train in one process without pipeline, replicas or cache: freezing only, one optimiser."""
    network = copy.deepcopy(network).train()
    trained = [each for each in network.parameters() if each.requires_grad]
    optimizer = settings["optimizer"](trained, lr=settings["lr"])
    scheduler = settings.get("scheduler")
    scheduler = scheduler and scheduler(optimizer)
    losses = []
    for epoch in range(settings["epochs"]):
        frozen = cap(LAYERS, alpha, epoch) if settings.get("freeze") != "none" else 0
        for unit in list(network.units)[: 1 + 2 * frozen if frozen else 0]:
            unit.requires_grad_(False).eval()
        for batch in order(len(data), settings.get("seed", 0), epoch).split(settings["batch_size"]):
            x = data.x[batch] if isinstance(data.x, Tensor) else [own[batch] for own in data.x]
            for unit in network.units:
                x = unit(x)
            loss = network.loss(x, data.y[batch])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if settings.get("clip") is not None:
                own = [p for p in network.parameters() if p.grad is not None]
                nn.utils.clip_grad_norm_(own, settings["clip"])
            optimizer.step()
            if scheduler:
                scheduler.step()
            losses.append(loss.item())
    return Plain(losses, network.state_dict())


def warm_cosine(steps: int, warmup: float = 0.1) -> Callable[[Any], LRScheduler]:
    """Return a scheduler that rises, and falls as a cosine, over so many steps."""
    rising = warmup * steps

    def factor(done: int) -> float:
        fall = (1 + math.cos(math.pi * (done + 1 - rising) / (steps - rising))) / 2
        return min((done + 1) / rising, fall)

    return alkit.each_batch(partial(LambdaLR, lr_lambda=factor))


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


SETTINGS: dict[str, Any] = {
    "epochs": 4,
    "batch_size": 8,
    "micro": 2,
    "freeze": "schedule",
    "optimizer": adamw,
    "lr": 3e-3,
    "clip": 0.5,
    "scheduler": warm_cosine(12),
}


@cache
def expected(task: str = "vit") -> Plain:
    """Return what the plain loop leaves with the settings that most tests begin with."""
    make, data = TASKS[task]
    return plain(make(), data(), SETTINGS)
