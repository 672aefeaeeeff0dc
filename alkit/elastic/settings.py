"""What a run of elastic training is told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from alkit.elastic.freeze import Observation, Policy, kept, policy
from alkit.elastic.layout import Layout, Planner, check_choice
from alkit.elastic.optim import Recipe

EXECUTORS = ("single", "threads", "ranks")
SCHEDULES = ("1f1b", "gpipe")
LEAST = {
    1: ("devices", "epochs", "batch", "threads"),
    0: ("stages", "micro"),
}


@dataclass(frozen=True)
class Settings:
    """Settings of a run; all ranks have the same.

    Attributes:
        freeze: a rule of `alkit.elastic.freeze.POLICIES`, with `freeze_options` (alpha), or a
            function of an `Observation`.
        pipe, dp, cache: the other three switches, see `alkit.elastic.layout`; with cache what
            frozen layers make is stored.
        devices: in all; with executor "ranks" the number of ranks.
        stages: of a replica at first; 0 for as many as devices.
        epochs: all of them, those before a checkpoint included.
        batch: samples of a step; the last of an epoch takes what is left, unless drop_last.
        micro: micro-batches at most; 0 for the published table.
        executor: "single", on the calling thread; "threads", one a stage; "ranks".
        schedule: of a batch: "1f1b", or "gpipe" as published.
        threads: operator threads of each worker.
        seed: of the order of the samples.
        recipe: optimiser, rate, clipping.
        clip: in place of the recipe's.
        partition, budget, batch_policy: see `Planner`.
        memory_budget: bytes that a rank may hold while it trains, see `alkit.elastic.held`; None
            for any. Weights, gradients and moments that do not fit are refused before the first
            step, activations in it; fewer stages are taken only where they fit.
        cache_folder: for a folder of this run's features; None for the system's temporary one.
    """

    freeze: str | Policy = "schedule"
    freeze_options: Mapping[str, Any] = field(default_factory=dict)
    pipe: bool = True
    dp: bool = True
    cache: bool = True
    devices: int = 1
    stages: int = 0
    epochs: int = 10
    batch: int = 64
    drop_last: bool = False
    micro: int = 0
    executor: str = "single"
    schedule: str = "1f1b"
    threads: int = 1
    seed: int = 0
    recipe: Recipe = field(default_factory=Recipe)
    clip: float | None = None
    partition: str = "minmax"
    budget: float | None = None
    memory_budget: int | None = None
    batch_policy: str = "fixed_global"
    cache_folder: str | None = None

    def __post_init__(self) -> None:
        check_choice("executor", self.executor, EXECUTORS)
        check_choice("schedule", self.schedule, SCHEDULES)
        for least, names in LEAST.items():
            for name in names:
                if getattr(self, name) < least:
                    raise ValueError(f"{name} is {getattr(self, name)}: give at least {least}")
        if self.memory_budget is not None and self.memory_budget < 1:
            raise ValueError(f"memory_budget is {self.memory_budget}: give bytes, or None for any")
        self.policy()  # says now what is wrong with it

    def policy(self) -> Policy:
        """Return the rule that freezes."""
        if callable(self.freeze):
            return kept(self.freeze)
        return policy(self.freeze, **self.freeze_options)

    def most_frozen(self, layers: int, frozen: int, decisions: int) -> int:
        """Return the most layers that so many decisions may freeze; all, if a function decides."""
        if callable(self.freeze):
            return layers if decisions else frozen
        name = "schedule" if self.freeze == "gradnorm" else self.freeze
        rule = policy(name, **self.freeze_options)
        for number in range(1, decisions + 1):
            frozen = rule(Observation(layers, frozen, number, (), number / (decisions + 1)))
        return frozen

    def planner(
        self,
        sizes: list[float],
        layers: int,
        units_a_layer: int = 2,
        fits: Callable[[Layout], bool] | None = None,
    ) -> Planner:
        """Return what makes the layouts of a network with units of these sizes; see `Planner`."""
        return Planner(
            sizes,
            layers,
            units_a_layer=units_a_layer,
            devices=self.devices,
            stages=self.stages or self.devices,
            batch=self.batch,
            micro=self.micro,
            pipe=self.pipe,
            dp=self.dp,
            cache=self.cache,
            partition=self.partition,
            budget=self.budget,
            batch_policy=self.batch_policy,
            fits=fits,
        )

    def options(self) -> dict[str, Any]:
        """Return these as keywords of `alkit.fit`."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        return {"batch_size": own.pop("batch")} | own

    @property
    def steady(self) -> bool:
        """Whether the recipe leaves the optimiser's rates alone."""
        return self.recipe.shape == "constant" and not self.recipe.warmup

    def plain(self) -> dict[str, Any]:
        """Return what a checkpoint must agree with, as names and numbers."""
        freeze = self.freeze if isinstance(self.freeze, str) else "a function"
        options = {name: str(value) for name, value in sorted(self.freeze_options.items())}
        found = {"freeze": freeze, "freeze_options": options}
        same = ("batch", "drop_last", "seed", "epochs")
        found |= {name: getattr(self, name) for name in same}
        found |= {each.name: getattr(self.recipe, each.name) for each in fields(Recipe)}
        found |= {"optimizer": "a function"} if callable(self.recipe.optimizer) else {}
        return found | {"batch_policy": self.batch_policy}
