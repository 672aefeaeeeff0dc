"""What a user would take instead, by torch's own means, with no layer frozen as training goes.

    ddp               DistributedDataParallel: every rank has the whole network
    ddp_fewer         the same; the caller gives it fewer epochs, at whose end the rate is 0
    torch_1f1b        torch.distributed.pipelining: every rank has a stage, cut where ours is

Samples, their order, recipe and loss are those of elastic training. DDP's gradients lie in the
buckets that travel, which takes the least memory.
"""

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from alkit.base import tree
from alkit.data.parts import Pairs
from alkit.elastic.network import Network
from alkit.elastic.settings import Settings
from alkit.elastic.trainer import order
from alkit.elastic.units import World
from alkit.engine.evaluate import evaluate
from alkit.engine.launch import launch
from alkit.engine.trainer import Record
from studies.common.torch_pipelines import PlainGradient

RIVALS = ("ddp", "ddp_fewer", "torch_1f1b")


def rival(
    kind: str,
    network: Network,
    data: Pairs,
    *,
    ranks: int = 2,
    test: Pairs | None = None,
    validation: Pairs | None = None,
    settings: Mapping[str, Any],
) -> Record:
    """Train with torch's own means over ranks; the network here is left as it was.

    Args:
        kind: of RIVALS.
        settings: keywords of `alkit.fit`, see `studies.elastic.recipe`.
    """
    if kind not in RIVALS:
        raise ValueError(f"kind is {kind!r}: give {', '.join(RIVALS)}")
    if kind != "torch_1f1b" and settings["batch_size"] % ranks:
        raise ValueError(f"a batch of {settings['batch_size']} does not divide among {ranks} ranks")
    given = (kind, network, data, validation, test, settings)
    record, state = launch(_on_rank, *given, ranks=ranks, threads=settings.get("threads", 1))[0]
    trained = copy.deepcopy(network)
    trained.load_state_dict(state)
    return replace(record, model=trained)


@dataclass(frozen=True)
class _Rival:
    """How one of them trains.

    Attributes:
        model: what the optimiser steps on this rank.
        step: of rows: makes all gradients, clips them, returns this rank's loss.
        gather: makes the network whole on every rank.
        shares: losses that add up to one global loss.
    """

    model: nn.Module
    step: Callable[[Tensor], Tensor]
    gather: Callable[[], None]
    shares: int


class WithLoss(nn.Module):
    """A network that returns its loss: what DDP wraps."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Any, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        return self.network.loss(self.network(x), y)


def _on_rank(
    kind: str,
    network: Network,
    data: Pairs,
    validation: Pairs | None,
    test: Pairs | None,
    settings: Mapping[str, Any],
) -> tuple[Record, dict[str, Tensor]] | None:
    world = World()
    make = _pipelined if kind == "torch_1f1b" else _parallel
    own = make(network.train(), data, settings, world)
    trained = [each for each in own.model.parameters() if each.requires_grad]
    optimizer = settings["optimizer"](trained, lr=settings["lr"])
    scheduler = settings["scheduler"](optimizer)
    batch, seed = settings["batch_size"], settings.get("seed", 0)
    per_epoch = len(data) // batch * batch
    losses, rows = [], []
    for epoch in range(settings["epochs"]):
        start_s = time.perf_counter()
        for step in order(len(data), seed, epoch)[:per_epoch].split(batch):
            losses.append(own.step(step))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
        train_s = time.perf_counter() - start_s
        found = {"epoch": epoch, "train_s": train_s, "change_s": 0.0, "val_acc": float("nan")}
        own.gather()
        if validation is not None:
            found["val_acc"] = float(evaluate(network, validation).mean())
        rows.append(found | {"samples_per_s": per_epoch / train_s})
    tested = None if test is None else evaluate(network, test)
    mean = world.total(torch.stack(losses)) / own.shares
    state = {name: own.detach().clone() for name, own in network.state_dict().items()}
    if world.rank:
        return None
    record = Record(
        model=None,
        history=pd.DataFrame(rows),
        losses=mean.view(-1, 1, 1),
        test_correct=tested,
    )
    return record, state


def _parallel(network: Network, data: Pairs, settings: Mapping[str, Any], world: World) -> _Rival:
    model = DistributedDataParallel(WithLoss(network), gradient_as_bucket_view=True)

    def step(batch: Tensor) -> Tensor:
        own = [*tree.micro_batches(batch, world.ranks)][world.rank]
        loss = model(_inputs(data, own), data.y[own])
        loss.backward()
        if settings["clip"] is not None:
            nn.utils.clip_grad_norm_(model.parameters(), settings["clip"])
        return loss.detach()

    return _Rival(model, step, lambda: None, world.ranks)


def _pipelined(network: Network, data: Pairs, settings: Mapping[str, Any], world: World) -> _Rival:
    """Make torch's pipeline: this rank's stage of it."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    chosen = Settings(micro=settings.get("micro", 0))
    plan = network.planner(chosen, devices=world.ranks, batch=settings["batch_size"]).at(0)
    world.regroup(plan)
    last, kind = world.rank == world.ranks - 1, next(network.parameters()).dtype
    own = _Units(network, *plan.bounds[world.rank])
    stage = PipelineStage(own, world.rank, world.ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, plan.micro, loss_fn=network.loss)

    def step(batch: Tensor) -> Tensor:
        x, losses = _inputs(data, batch), []
        inputs = ((x,) if isinstance(x, Tensor) else x) if world.rank == 0 else ()
        known = {} if isinstance(x, Tensor) or world.rank == 0 else {"mask": x[2]}
        ends = {"target": data.y[batch], "losses": losses} if last else {}
        schedule.step(*inputs, **known, **ends)
        _clip(own, settings["clip"], world)
        return torch.stack(losses).mean().detach() if last else torch.zeros((), dtype=kind)

    def gather() -> None:
        for rank, (low, high) in enumerate(plan.bounds):
            for tensor in network.units[low:high].state_dict().values():
                dist.broadcast(tensor, rank)

    return _Rival(own, step, gather, 1)


class _Units(nn.Module):
    """Neighbouring units that take and return plain tensors, as torch's stages must."""

    def __init__(self, network: Network, low: int, high: int) -> None:
        super().__init__()
        self.units = network.units[low:high]
        self.is_first = low == 0

    def forward(self, *x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the last unit's output; a text's mask comes from this rank's own batch."""
        if self.is_first:
            payload: Any = x[0] if len(x) == 1 else x
        else:
            first = PlainGradient.apply(x[0])
            payload = first if mask is None else (first, mask)
        for unit in self.units:
            payload = unit(payload)
        return payload if isinstance(payload, Tensor) else payload[0].contiguous()


def _clip(own: nn.Module, most: float | None, world: World) -> None:
    """Clip by the norm over all stages."""
    if most is None:
        return
    grads = [p.grad for p in own.parameters() if p.grad is not None]
    square = sum(float(grad.square().sum()) for grad in grads)
    norm = (world.add_up(square) if world.add_up is not None else square) ** 0.5
    for grad in grads if norm > most else ():
        grad.mul_(most / (norm + 1e-6))


def _inputs(data: Pairs, rows: Tensor) -> Any:
    return tree.map_tensors(lambda own: own[rows], data.x)
