"""What a user would take instead: torch's DistributedDataParallel, with no layer frozen.

Samples, their order, recipe and loss are those of elastic training. Gradients lie in the buckets
that travel, which takes the least memory.
"""

import time
from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import alkit
from alkit.base import tree
from alkit.data.parts import Pairs
from alkit.elastic.network import Network
from alkit.elastic.trainer import order
from alkit.elastic.units import World
from alkit.engine.trainer import Record


def data_parallel(
    network: Network, data: Pairs, settings: Mapping[str, Any], *, ranks: int = 2
) -> Record:
    """Train the network by data parallel over ranks; it ends with the trained weights.

    Args:
        settings: keywords of `alkit.fit`, see `studies.elastic.recipe`.
    """
    if settings["batch_size"] % ranks:
        raise ValueError(f"a batch of {settings['batch_size']} does not divide among {ranks} ranks")
    threads = settings.get("threads", 1)
    found = alkit.launch(on_rank, network, data, settings, ranks=ranks, threads=threads)
    rows, losses, state = found[0]
    network.load_state_dict(state)
    return Record(model=network, history=pd.DataFrame(rows), losses=losses)


def on_rank(network: Network, data: Pairs, settings: Mapping[str, Any]) -> Any:
    """Train on this rank; return rows of the history, losses (steps, 1, 1), and the weights."""
    world, model = World(), DistributedDataParallel(network.train(), gradient_as_bucket_view=True)
    optimizer = settings["optimizer"](model.parameters(), lr=settings["lr"])
    scheduler, batch = settings["scheduler"](optimizer), settings["batch_size"]
    losses: list[Tensor] = []
    rows = []
    for epoch in range(settings["epochs"]):
        start_s = time.perf_counter()
        rows_of = order(len(data), settings.get("seed", 0), epoch)
        for step in rows_of[: len(data) // batch * batch].split(batch):
            own = [*tree.micro_batches(step, world.ranks)][world.rank]
            scores = model(tree.map_tensors(lambda x, own=own: x[own], data.x))
            loss = network.loss(scores, data.y[own])
            loss.backward()
            losses.append(loss.detach())
            if settings["clip"] is not None:
                nn.utils.clip_grad_norm_(model.parameters(), settings["clip"])
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
        rows.append({"epoch": epoch, "train_s": time.perf_counter() - start_s, "change_s": 0.0})
    mean = world.total(torch.stack(losses)) / world.ranks
    return rows, mean.view(-1, 1, 1), {k: v.detach() for k, v in network.state_dict().items()}
