"""The steps between two decisions: one layout, one schedule, one set of frozen layers.

first stage's process     features of the batch (stored, or by the frozen layers), then F B ...
other processes           labels only; what they work on comes through the pipeline
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
from torch import Tensor

from alkit.elastic.cache import Cache
from alkit.elastic.examples import Examples, part_of
from alkit.elastic.network import Network
from alkit.elastic.optim import Optimizer
from alkit.elastic.plan import Plan
from alkit.elastic.settings import Settings
from alkit.elastic.stage import Shared, UnitStage
from alkit.elastic.world import World
from alkit.engine.local import run_single, run_threads
from alkit.engine.ranks import merged, run_ranks
from alkit.schedule.flushed import gpipe, one_f_one_b
from alkit.schedule.task import Edge, Schedule, Task
from alkit.schedule.timeline import Timeline

__all__ = ["Outcome", "Steps", "run_segment", "schedule_of"]

KINDS = {"1f1b": one_f_one_b, "gpipe": gpipe}


@dataclass(frozen=True)
class Steps:
    """The batches of a segment.

    Attributes:
        rows: of each step's global batch.
        first: number of the first step in the run.
        epoch: also the variant of images.
        factor: of the learning rate, by the number of the step.
    """

    rows: Sequence[Tensor]
    first: int
    epoch: int
    factor: Callable[[int], float]


@dataclass(frozen=True)
class Outcome:
    """What a segment left, the same on all ranks.

    Attributes:
        losses: (steps,), of the network's type.
        squares: for each layer, the sum over steps of its gradient's squared norm.
        timeline: of all workers.
        skipped: steps that were left out.
        reduce_s, update_s: of this rank, see `Shared`.
    """

    losses: Tensor
    squares: Tensor
    timeline: Timeline
    skipped: list[int]
    reduce_s: float
    update_s: float


def schedule_of(kind: str, stages: int, micro: int, *, joint: bool = True) -> Schedule:
    """Return the schedule of a layout.

    Args:
        joint: updates wait for the gradients of all stages, whose norm they clip by; over ranks
            the sum that is the norm does that.
    """
    plain = KINDS[kind](stages, micro)
    if not joint:
        return plain

    def edges(task: Task) -> tuple[Edge, ...]:
        if task.kind != "update":
            return plain.edges(task)
        last = (Task("backward", stage, task.batch, micro - 1) for stage in range(stages))
        return *plain.edges(task), *(Edge("barrier", other) for other in last)

    return replace(plain, edges=edges)


def run_segment(
    network: Network,
    optimizer: Optimizer,
    data: Examples,
    cache: Cache,
    plan: Plan,
    steps: Steps,
    settings: Settings,
    world: World,
) -> Outcome:
    """Run the steps; call it on every rank."""
    ranks = settings.executor == "ranks"
    micro = plan.micro if ranks else plan.micro * plan.replicas
    shared = Shared(
        network, optimizer, micro, steps.epoch, steps.first, steps.factor,
        world.replica if ranks else 0, world.reduce, world.add_up, settings.skip,
    )  # fmt: skip
    stages = _stages(shared, plan, network, world.stage if ranks else None)
    schedule = schedule_of(settings.schedule, plan.stages, micro, joint=not ranks)
    feed = _feed(data, cache, plan, steps, world, ranks=ranks)
    if not ranks:
        run = run_single if settings.executor == "single" else run_threads
        timeline = run(schedule, stages, feed, threads=settings.threads)
        return _outcome(shared, timeline, world, plan, network)
    own = run_ranks(
        schedule, stages, feed, threads=settings.threads, pipelines=plan.replicas, spare=True
    )
    return _outcome(shared, merged(own), world, plan, network)


def _stages(shared: Shared, plan: Plan, network: Network, own: int | None) -> list[UnitStage]:
    """Make the stages.

    Args:
        own: the stage of this process; None if it has all.
    """
    first = network.first()
    found = []
    for index, (low, high) in enumerate(plan.bounds):
        active = range(max(low, first), max(high, first))
        found.append(UnitStage(
            shared, (low, high), is_first=index == 0, is_last=index == plan.stages - 1,
            wants_input_gradient=low > first,
            all_units=range(first, len(network.units)) if own is None else active,
        ))  # fmt: skip
    return found


def _feed(
    data: Examples,
    cache: Cache,
    plan: Plan,
    steps: Steps,
    world: World,
    *,
    ranks: bool,
) -> Iterator[tuple[SimpleNamespace, Tensor]]:
    """Yield (inputs, labels); inputs are wrapped, for what every process has are labels only."""
    parts = [part_of(rows, world.replica, plan.replicas) if ranks else rows for rows in steps.rows]
    first_stage = not ranks or world.stage == 0
    for at, rows in enumerate(parts):
        y = data.y[rows]
        if not first_stage:
            yield SimpleNamespace(x=None), y
            continue
        x = cache.features(rows, steps.epoch) if plan.start else cache.raw(rows, steps.epoch)
        if plan.start and at + 1 < len(parts):
            cache.read_ahead(parts[at + 1], steps.epoch)
        yield SimpleNamespace(x=x), y


def _outcome(
    shared: Shared, timeline: Timeline, world: World, plan: Plan, network: Network
) -> Outcome:
    """Put what the ranks have together: losses of the last stages, squares of the first replica."""
    squares = torch.zeros(network.layers, dtype=torch.float64)
    if world.replica == 0 and world.stage < plan.stages:
        for layer, square in shared.squares.items():
            squares[layer] = square
    losses = torch.stack(shared.losses) if shared.losses else torch.zeros(0)
    if shared.losses and world.reduce is not None:
        losses = world.reduce(losses)
    told = world.broadcast({"losses": losses, "skipped": shared.skipped}, plan.stages - 1)
    return Outcome(
        told["losses"], world.total(squares), timeline, list(told["skipped"]), shared.reduce_s,
        shared.update_s,
    )  # fmt: skip
