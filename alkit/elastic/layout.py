"""From the number of frozen layers to a layout: stages, replicas, micro-batches.

    units    embedding | attention 0 | mlp 0 | attention 1 | mlp 1 | ... | norm | head
    stages   [ 0            0            0   ][ 1             1     ...    1       1  ]

    4 devices, 4 stages at first, 12 layers      0 frozen    4 stages x 1 replica
    active units fit on 2                        6 frozen    2 stages x 2 replicas
    ... on 1                                     9 frozen    1 stage  x 4 replicas

    freeze  pipe  dp  cache
      x      -    -    -     frozen units stay where they are, in all stages
      x      x    -    -     they leave, the rest is cut anew, into half as many stages if it fits
      x      x    x    -     and the devices that are left over run more replicas
      x      x    *    x     outputs of layers that have left are stored

All of it is pure: no tensors, no processes. Sizes are of any unit: parameters, seconds, bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from alkit.elastic.settings import Settings
from alkit.engine.costs import balanced_cuts

Partitioner = Callable[[Sequence[float], int], list[int]]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which units run where."""

    frozen: int  # layers
    counts: tuple[int, ...]  # units of each stage
    start: int  # the first unit in the pipeline; those before it run in front of it
    replicas: int  # pipelines side by side
    micro: int  # micro-batches in the batch of a replica
    batch: int  # samples of a step, of all replicas

    @property
    def stages(self) -> int:
        """Number of stages of a replica."""
        return len(self.counts)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """The first unit of every stage, and the one after its last."""
        return list(pairwise(accumulate(self.counts, initial=self.start)))


def table_micro(stages: int) -> int:
    """Return the published number of micro-batches: 16, or 4 without a pipeline."""
    return 16 if stages > 1 else 4


def minmax(sizes: Sequence[float], stages: int) -> list[int]:
    """Return the counts of units of each stage that make the largest stage smallest."""
    bounds = [0, *balanced_cuts(sizes, stages), len(sizes)]
    return [high - low for low, high in pairwise(bounds)]


def loads(sizes: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Return the size of every stage."""
    ends = accumulate(counts, initial=0)
    return [sum(sizes[low:high]) for low, high in pairwise(ends)]


def compress(
    sizes: Sequence[float], stages: int, budget: float, partition: Partitioner = minmax
) -> int:
    """Return the number of stages after halving as often as the largest stage fits into `budget`.

    As published that is the size of the largest stage before anything was frozen.
    """
    while stages >= 2:
        if max(loads(sizes, partition(sizes, stages // 2))) > budget * (1 + 1e-12):
            break
        stages //= 2
    return stages


@dataclass
class Planner:
    """Makes the layouts of a run."""

    settings: Settings
    sizes: Sequence[float]  # of all units, in any unit of measure: parameters, or seconds
    devices: int
    batch: int  # samples of a step at first
    units_a_layer: int = 2  # after an embedding
    partition: Partitioner = minmax  # how units are cut into stages

    def __post_init__(self) -> None:
        self.stages = stages = self.settings.stages or self.devices
        if stages < 1 or stages & (stages - 1) or self.devices % stages:
            said = f"stages is {stages} and there are {self.devices} devices"
            raise ValueError(f"{said}: give a power of two that divides them, to be halved")
        self.first_counts = self.partition(self.sizes, stages)
        self.budget = self.settings.budget or max(loads(self.sizes, self.first_counts))

    def at(self, frozen: int, before: Layout | None = None) -> Layout:
        """Return the layout with `frozen` layers frozen; it has no more stages than `before`."""
        first = 1 + self.units_a_layer * frozen if frozen else 0
        stages = self.stages if before is None else before.stages
        if not self.settings.pipe or not frozen:
            return self._with(frozen, self.first_counts, 0)
        active = self.sizes[first:]
        most = min(stages, 1 << (len(active).bit_length() - 1))
        stages = compress(active, most, self.budget, self.partition)
        return self._with(frozen, self.partition(active, stages), first)

    def _with(self, frozen: int, counts: Sequence[int], start: int) -> Layout:
        stages = len(counts)
        at_first = self.devices // self.stages
        replicas = self.devices // stages if self.settings.dp else at_first
        batch = self.batch * (replicas if self.settings.growing else at_first) // at_first
        if batch < replicas:
            raise ValueError(f"a batch of {batch} is too small for {replicas} replicas: give more")
        micro = self.settings.micro or (1 if self.devices == 1 else table_micro(stages))
        if stages == 1 and self.settings.micro:
            micro = 1  # without a pipeline, cutting a batch only costs
        own = batch // replicas
        micro = next(m for m in range(min(micro, own), 0, -1) if own % m == 0)
        return Layout(
            frozen=frozen,
            counts=tuple(counts),
            start=start,
            replicas=replicas,
            micro=micro,
            batch=batch,
        )
