"""From the number of frozen layers to a layout: stages, replicas, micro-batches.

    units    embedding | attention 0 | mlp 0 | attention 1 | mlp 1 | ... | norm | head
    stages   [ 0            0            0   ][ 1             1     ...    1       1  ]

    4 devices, 4 stages at first, 12 layers      0 frozen    4 stages x 1 replica
    what is active fits on 2                     6 frozen    2 stages x 2 replicas
    ... on 1                                     9 frozen    1 stage  x 4 replicas

    freeze  pipe  dp  cache
      x      -    -    -     frozen units stay where they are, in all stages
      x      -    -    x     they leave the pipeline; active ones stay, stages may be empty
      x      x    -    *     they leave, the rest is cut anew, into half as many stages if it fits
      x      x    x    *     and the devices that are left over run more replicas

All of it is pure: no tensors, no processes. Sizes are of any unit: parameters, seconds, bytes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from alkit.engine.costs import balanced_cuts

FROZEN_COST = 1 / 6  # memory of a frozen layer over that of an active one, as published
BATCH_POLICIES = ("fixed_global", "fixed_per_replica")

Partitioner = Callable[[Sequence[float], int], list[int]]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A layout.

    Attributes:
        frozen: layers.
        counts: units of each stage.
        start: the first unit in the pipeline; those before it run in front of it.
        replicas: pipelines side by side.
        micro: micro-batches per replica's batch.
        batch: samples of a step, of all replicas.
    """

    frozen: int
    counts: tuple[int, ...]
    start: int
    replicas: int
    micro: int
    batch: int

    @property
    def stages(self) -> int:
        """Number of stages of a replica."""
        return len(self.counts)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """The first unit of every stage, and the one after its last."""
        return list(pairwise(accumulate(self.counts, initial=self.start)))


def check_choice(name: str, value: str, allowed: Iterable[str]) -> None:
    """Raise a ValueError for a value that is not among those that are allowed."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}: give {', '.join(allowed)}")


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

    Args:
        sizes: of the active units.
        budget: what a device holds; as published, the largest stage before anything was frozen.
    """
    while stages >= 2:
        if max(loads(sizes, partition(sizes, stages // 2))) > budget * (1 + 1e-12):
            break
        stages //= 2
    return stages


@dataclass(kw_only=True)
class Planner:
    """Makes the layouts of a run.

    Attributes:
        sizes: of all units, in any unit of measure: parameters, or seconds.
        devices: in all.
        stages: of a replica at first; a power of two that divides the devices.
        batch: samples of a step at first.
        units_a_layer: after an embedding.
        micro: micro-batches at most, where there is a pipeline; 0 for the published table.
        pipe, dp, cache: what may change while training runs, see above.
        partition: how units are cut into stages.
        budget: the largest stage that a device holds, in the unit of `sizes`; None: the largest
            one of the first partition, as published.
        batch_policy: "fixed_global", the same training whatever the layout, or
            "fixed_per_replica", as published.
    """

    sizes: Sequence[float]
    devices: int
    stages: int
    batch: int
    units_a_layer: int = 2
    micro: int = 0
    pipe: bool = True
    dp: bool = True
    cache: bool = True
    partition: Partitioner = minmax
    budget: float | None = None
    batch_policy: str = "fixed_global"

    def __post_init__(self) -> None:
        check_choice("batch_policy", self.batch_policy, BATCH_POLICIES)
        if self.stages < 1 or self.stages & (self.stages - 1) or self.devices % self.stages:
            raise ValueError(
                f"stages is {self.stages} and there are {self.devices} devices: give a power of"
                " two that divides them, so that it can be halved"
            )
        if self.stages > len(self.sizes):
            raise ValueError(
                f"stages is {self.stages} and there are {len(self.sizes)} units: give as many"
            )
        self.first_counts = self.partition(self.sizes, self.stages)
        self.budget = self.budget or max(loads(self.sizes, self.first_counts))

    def at(
        self,
        frozen: int,
        before: Layout | None = None,
        fits: Callable[[Layout], bool] = lambda layout: True,
    ) -> Layout:
        """Return the layout with so many frozen layers.

        Args:
            before: the layout that runs now; the number of stages never grows.
            fits: whether a layout may be, beside `budget`; fewer stages are taken only then.
        """
        first = 1 + self.units_a_layer * frozen if frozen else 0
        stages = self.stages if before is None else before.stages
        if not self.pipe or not frozen:
            counts, start = self.first_counts, 0
            if self.cache and frozen:
                counts, start = _without(counts, first), first
            return self._with(frozen, counts, start)
        active = self.sizes[first:]
        most = min(stages, 1 << (len(active).bit_length() - 1))
        assert self.budget is not None  # the published one is set when a planner is made
        stages = compress(active, most, self.budget, self.partition)
        while True:
            layout = self._with(frozen, self.partition(active, stages), first)
            if stages == most or fits(layout):
                return layout
            stages *= 2

    def _with(self, frozen: int, counts: Sequence[int], start: int) -> Layout:
        stages = len(counts)
        replicas = self.devices // (stages if self.dp else self.stages)
        batch = self.batch
        if self.batch_policy == "fixed_per_replica":
            batch = self.batch * replicas // (self.devices // self.stages)
        if batch % replicas:
            raise ValueError(
                f"a batch of {batch} does not divide among {replicas} replicas, which there are"
                f" with {frozen} frozen layers: give a multiple"
            )
        micro = self.micro or (1 if self.devices == 1 else table_micro(stages))
        if stages == 1 and self.micro:
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


def _without(counts: Sequence[int], units: int) -> list[int]:
    """Take the first units out of their stages; a stage may be left with none."""
    found = []
    for count in counts:
        gone = min(count, units)
        found.append(count - gone)
        units -= gone
    return found
