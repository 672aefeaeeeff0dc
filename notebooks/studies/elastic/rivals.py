"""What a user would take instead, by torch's own means, with no layer frozen as training goes.

    ddp               DistributedDataParallel: every rank has the whole network
    ddp_fewer         the same; the caller gives it fewer epochs, at whose end the rate is 0

Samples, their order, recipe and loss are those of elastic training. DDP's gradients lie in the
buckets that travel, which takes the least memory.
"""

import copy
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from alkit.base import tree
from alkit.data.parts import Pairs
from alkit.elastic.network import Network
from alkit.elastic.trainer import order
from alkit.elastic.units import World
from alkit.engine.evaluate import evaluate
from alkit.engine.launch import launch
from alkit.engine.trainer import Record

RIVALS = ("ddp", "ddp_fewer")


class WithLoss(nn.Module):
    """A network that returns its loss: what DDP wraps."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Any, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        return self.network.loss(self.network(x), y)


def rival(
    network: Network,
    data: Pairs,
    *,
    ranks: int = 2,
    test: Pairs | None = None,
    validation: Pairs | None = None,
    settings: Mapping[str, Any],
) -> Record:
    """Train by data parallel over ranks; the network here is left as it was.

    Args:
        settings: keywords of `alkit.fit`, see `studies.elastic.recipe`.
    """
    if settings["batch_size"] % ranks:
        raise ValueError(f"a batch of {settings['batch_size']} does not divide among {ranks} ranks")
    given = (network, data, validation, test, settings)
    record, state = launch(_on_rank, *given, ranks=ranks, threads=settings.get("threads", 1))[0]
    trained = copy.deepcopy(network)
    trained.load_state_dict(state)
    return replace(record, model=trained)


def _on_rank(
    network: Network,
    data: Pairs,
    validation: Pairs | None,
    test: Pairs | None,
    settings: Mapping[str, Any],
) -> tuple[Record, dict[str, Tensor]] | None:
    world = World()
    model = DistributedDataParallel(WithLoss(network.train()), gradient_as_bucket_view=True)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = settings["optimizer"](trained, lr=settings["lr"])
    scheduler = settings["scheduler"](optimizer)
    batch, seed = settings["batch_size"], settings.get("seed", 0)
    per_epoch = len(data) // batch * batch
    losses, rows = [], []
    for epoch in range(settings["epochs"]):
        start_s = time.perf_counter()
        for step in order(len(data), seed, epoch)[:per_epoch].split(batch):
            own = [*tree.micro_batches(step, world.ranks)][world.rank]
            loss = model(tree.map_tensors(lambda x, own=own: x[own], data.x), data.y[own])
            loss.backward()
            losses.append(loss.detach())
            if settings["clip"] is not None:
                nn.utils.clip_grad_norm_(model.parameters(), settings["clip"])
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
        train_s = time.perf_counter() - start_s
        found = {"epoch": epoch, "train_s": train_s, "change_s": 0.0, "val_acc": float("nan")}
        if validation is not None:
            found["val_acc"] = float(evaluate(network, validation).mean())
        rows.append(found | {"samples_per_s": per_epoch / train_s})
    mean = world.total(torch.stack(losses)) / world.ranks
    if world.rank:
        return None
    record = Record(
        model=None,
        history=pd.DataFrame(rows),
        losses=mean.view(-1, 1, 1),
        test_correct=None if test is None else evaluate(network, test),
    )
    return record, {name: own.detach().clone() for name, own in network.state_dict().items()}
