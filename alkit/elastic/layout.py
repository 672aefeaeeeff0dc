"""From the number of frozen layers to a layout: stages, replicas, micro-batches.

    4 devices, 4 stages at first, 12 layers      0 frozen    4 stages x 1 replica
    what is active fits on 2                     6 frozen    2 stages x 2 replicas
    ... on 1                                     9 frozen    1 stage  x 4 replicas

    freeze  pipe  dp  cache
      x      -    -    -     frozen units stay where they are, in all stages
      x      -    -    x     they leave the pipeline; active ones stay, stages may be empty
      x      x    -    *     they leave, the rest is cut anew, into half as many stages if it fits
      x      x    x    *     and the devices that are left over run more replicas

All of it is pure: no tensors, no processes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from alkit.elastic.balance import Partitioner, compress, greedy, loads, minmax

PARTITIONS: dict[str, Partitioner] = {"minmax": minmax, "greedy": greedy}
BATCH_POLICIES = ("fixed_global", "fixed_per_replica")


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
    def ranks(self) -> int:
        """Number of devices that work."""
        return self.stages * self.replicas

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """The first unit of every stage, and the one after its last."""
        found, at = [], self.start
        for count in self.counts:
            found.append((at, at + count))
            at += count
        return found


def check_choice(name: str, value: str, allowed: Iterable[str]) -> None:
    """Raise a ValueError for a value that is not among those that are allowed."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}: give {', '.join(allowed)}")


def table_micro(stages: int) -> int:
    """Return the published number of micro-batches: 16, or 4 without a pipeline."""
    return 16 if stages > 1 else 4


class Planner:
    """Makes the plans of a run.

    Args:
        sizes: of all units, in any unit of measure: parameters, or seconds.
        layers: of the network, after an embedding; units_a_layer: of each.
        devices: in all.
        stages: of a replica at first; a power of two that divides the devices.
        batch: samples of a step at first.
        micro: micro-batches at most, where there is a pipeline; 0 for the published table.
        pipe, dp, cache: what may change while training runs, see above.
        partition: "minmax", or "greedy" as published.
        budget: the largest stage that a device holds, in the unit of `sizes`; None: the largest
            one of the first partition, as published.
        batch_policy: "fixed_global", the same training whatever the layout, or
            "fixed_per_replica", as published.
        fits: whether a layout may be, beside `budget`; fewer stages are taken only then.
    Raises:
        ValueError: numbers or names that don't fit; says what would.
    """

    def __init__(
        self,
        sizes: Sequence[float],
        layers: int,
        *,
        units_a_layer: int = 2,
        devices: int,
        stages: int,
        batch: int,
        micro: int = 0,
        pipe: bool = True,
        dp: bool = True,
        cache: bool = True,
        partition: str = "minmax",
        budget: float | None = None,
        batch_policy: str = "fixed_global",
        fits: Callable[[Layout], bool] | None = None,
    ) -> None:
        _check(stages, devices, batch, micro, len(sizes))
        check_choice("partition", partition, PARTITIONS)
        check_choice("batch_policy", batch_policy, BATCH_POLICIES)
        self.sizes, self.layers, self.units_a_layer = list(sizes), layers, units_a_layer
        self.devices, self.stages, self.batch, self.micro = devices, stages, batch, micro
        self.pipe, self.dp, self.cache = pipe, dp, cache
        self.partition = PARTITIONS[partition]
        self.batch_policy, self.fits = batch_policy, fits
        self.first_counts = self._cut(self.sizes, stages)
        self.budget = budget or max(loads(self.sizes, self.first_counts))

    def at(self, frozen: int, before: Layout | None = None) -> Layout:
        """Return the layout with so many frozen layers.

        Args:
            before: the layout that runs now; the number of stages never grows.
        """
        first = 1 + self.units_a_layer * frozen if frozen else 0
        stages = self.stages if before is None else before.stages
        if not self.pipe or not frozen:
            return self._with(frozen, stages)
        active = self.sizes[first:]
        most = min(stages, _power_below(len(active)))
        stages = min(compress(active, stages, self.budget, self._cut_safely), most)
        while self.fits is not None and stages < most and not self.fits(self._with(frozen, stages)):
            stages *= 2
        return self._with(frozen, stages)

    def _with(self, frozen: int, stages: int) -> Layout:
        """Return the layout with so many frozen layers and stages."""
        first = 1 + self.units_a_layer * frozen if frozen else 0
        if self.pipe and frozen:
            counts, start = self._cut(self.sizes[first:], stages), first
        else:
            counts, start = self.first_counts, 0
            if self.cache and frozen:
                counts, start = _without(counts, first), first
        replicas = self.devices // (stages if self.dp else self.stages)
        batch = self.batch
        if self.batch_policy == "fixed_per_replica":
            batch = self.batch * replicas // (self.devices // self.stages)
        if batch % replicas:
            raise ValueError(
                f"a batch of {batch} does not divide among {replicas} replicas, which there are"
                f" with {frozen} frozen layers: give a multiple"
            )
        micro = self._micro(stages, batch // replicas)
        return Layout(
            frozen=frozen,
            counts=tuple(counts),
            start=start,
            replicas=replicas,
            micro=micro,
            batch=batch,
        )

    def _micro(self, stages: int, batch: int) -> int:
        """Return the most micro-batches up to the wanted ones that divide a replica's batch."""
        wanted = self.micro or table_micro(stages)
        if stages == 1 and self.micro:
            wanted = 1  # without a pipeline, cutting a batch only costs
        return next(m for m in range(min(wanted, batch), 0, -1) if batch % m == 0)

    def _cut(self, sizes: Sequence[float], stages: int) -> list[int]:
        """Cut, but never into empty stages, which the greedy rule can leave."""
        counts = self.partition(sizes, stages)
        return counts if all(counts) else minmax(sizes, stages)

    def _cut_safely(self, sizes: Sequence[float], stages: int) -> list[int]:
        return self._cut(sizes, min(stages, len(sizes)))


def _without(counts: Sequence[int], units: int) -> list[int]:
    """Take the first units out of their stages; a stage may be left with none."""
    found = []
    for count in counts:
        gone = min(count, units)
        found.append(count - gone)
        units -= gone
    return found


def _power_below(count: int) -> int:
    return 1 << (count.bit_length() - 1)


def _check(stages: int, devices: int, batch: int, micro: int, units: int) -> None:
    if stages < 1 or stages & (stages - 1):
        raise ValueError(f"stages is {stages}: give a power of two, so that it can be halved")
    if stages > devices or devices % stages:
        raise ValueError(
            f"stages is {stages} and there are {devices} devices: give a number that divides them"
        )
    if stages > units:
        raise ValueError(f"stages is {stages} and there are {units} units: give at most as many")
    if batch < 1 or micro < 0:
        raise ValueError(f"batch is {batch} and micro {micro}: give at least 1, and 0 or more")
