"""What a user would take instead: torch's DistributedDataParallel, and its FSDP.

The same samples in the same order, recipe and loss as elastic training, nothing frozen; each rank
has the whole network (DDP) or a part of every unit's weights (FSDP).
"""

import time
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from alkit.elastic.evaluate import correct
from alkit.elastic.examples import Examples, order, part_of
from alkit.elastic.network import Network
from alkit.elastic.run import Record
from alkit.elastic.settings import Settings
from alkit.elastic.world import Group
from alkit.heartbeat import beat
from alkit.ranks import launch
from alkit.timeline import Timeline

__all__ = ["RIVALS", "rival"]

RIVALS = ("ddp", "fsdp")


def rival(
    kind: str,
    network: Network,
    data: Examples,
    *,
    ranks: int = 2,
    test: Examples | None = None,
    validation: Examples | None = None,
    settings: Settings,
) -> Record:
    """Train with torch's own means over ranks; the network here is left as it was.

    Args:
        kind: "ddp" or "fsdp".
        settings: epochs, batch, seed, threads and recipe of them count.
    Raises:
        ValueError: another kind, or a batch that does not divide among the ranks.
        RankFailed: a rank failed.
    """
    if kind not in RIVALS:
        raise ValueError(f"kind is {kind!r}: give {', '.join(RIVALS)}")
    if settings.batch % ranks:
        raise ValueError(f"a batch of {settings.batch} does not divide among {ranks} ranks")
    settings = replace(settings, devices=ranks, executor="ranks")
    made = launch(_on_rank, kind, network, data, validation, test, settings, ranks=ranks,
                  threads=settings.threads)[0]  # fmt: skip
    assert isinstance(made, Record)
    return made


class _WithLoss(nn.Module):
    """A network that returns its loss: what DDP and FSDP wrap."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Any, y: Tensor) -> Tensor:
        return self.network.loss(self.network(x), y)


def _on_rank(
    kind: str,
    network: Network,
    data: Examples,
    validation: Examples | None,
    test: Examples | None,
    settings: Settings,
) -> Record | None:
    world, recipe = Group(), settings.recipe
    model = _wrapped(kind, network.train())
    optimizer = recipe.make(model)
    steps = len(data) // settings.batch
    total, done, losses, rows = settings.epochs * steps * settings.batch, 0, [], []
    for epoch in range(settings.epochs):
        start_s = time.perf_counter()
        for batch in order(len(data), settings.seed, epoch)[: steps * settings.batch].split(
            settings.batch
        ):
            beat("a step")
            own = part_of(batch, world.rank, world.ranks)
            loss = model(data.inputs(own, epoch), data.y[own])
            loss.backward()
            if recipe.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            done += settings.batch
            for group in optimizer.param_groups:
                group["lr"] = recipe.lr * recipe.factor(done, total)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
        train_s = time.perf_counter() - start_s
        accuracy = float("nan")
        if validation is not None:
            accuracy = float(_correct(network, validation, world, kind).mean())
        rows.append({"epoch": epoch, "train_s": train_s, "change_s": 0.0, "val_acc": accuracy,
                     "samples_per_s": steps * settings.batch / train_s})  # fmt: skip
    right = None if test is None else _correct(network, test, world, kind)
    mean = world.total(torch.stack(losses)) / world.ranks
    state = _whole_state(network, kind)
    if world.rank:
        return None
    return Record(mean, pd.DataFrame(rows), [], [], Timeline((), ()), [], [], right, state)


def _wrapped(kind: str, network: Network) -> nn.Module:
    model = _WithLoss(network)
    if kind == "ddp":
        return DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for unit in network.units:
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _correct(network: Network, data: Examples, world: Group, kind: str) -> Tensor:
    """Evaluate; with FSDP all ranks must run as many batches, so each takes all samples."""
    if kind == "ddp":
        return correct(network, data, world)
    return correct(network, data)


def _whole_state(network: Network, kind: str) -> dict[str, Tensor]:
    state = network.state_dict()
    if kind == "ddp":
        return {name: tensor.detach().clone() for name, tensor in state.items()}
    return {name: tensor.full_tensor().detach().clone() for name, tensor in state.items()}
