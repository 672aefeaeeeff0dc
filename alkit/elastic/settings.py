"""What elastic training can be told, beside what every method can."""

from dataclasses import dataclass

from alkit.data.arguments import check_real, check_whole
from alkit.elastic.freeze import Policy, policy
from alkit.elastic.layout import Planner, check_choice
from alkit.elastic.network import Network
from alkit.schedule.flushed import gpipe, one_f_one_b

SCHEDULES = {"1f1b": one_f_one_b, "gpipe": gpipe}


@dataclass(frozen=True)
class Settings:
    """Settings of elastic training.

    Attributes:
        freeze: "none", "schedule" or "gradnorm", or a function of an
            `alkit.elastic.freeze.Observation`, which is asked before every epoch but the first.
        alpha: share of the active layers that the two rules freeze at most.
        pipe, dp: whether stages and replicas change, see `alkit.elastic.layout`.
        cache: whether what frozen layers make is stored.
        stages: of a replica at first; 0 for as many as devices, which are workers or ranks.
        micro: micro-batches at most; 0 for the published table, and for 1 on one device.
        schedule: of a batch: "1f1b", or "gpipe" as published.
        clip: largest norm of all gradients together; None for no limit.
        budget, batch_policy: see `Planner`.
        memory_budget: bytes that a rank may hold while it trains, see `alkit.elastic.memory`; None
            for any. Weights, gradients and moments that do not fit are refused before the first
            step, activations in it; fewer stages are taken only where they fit.
    """

    freeze: str | Policy = "none"
    alpha: float = 1 / 3
    pipe: bool = True
    dp: bool = True
    cache: bool = True
    stages: int = 0
    micro: int = 0
    schedule: str = "1f1b"
    clip: float | None = None
    budget: float | None = None
    batch_policy: str = "fixed_global"
    memory_budget: int | None = None

    def __post_init__(self) -> None:
        check_choice("schedule", self.schedule, SCHEDULES)
        check_real("clip", self.clip)
        policy(self.freeze, self.alpha)  # says now what is wrong with it
        check_whole(memory_budget=self.memory_budget)

    def planner(self, network: Network, *, devices: int, batch: int) -> Planner:
        """Return what makes the layouts of a network on so many devices, for batches so large."""
        names = ("micro", "pipe", "dp", "cache", "budget", "batch_policy")
        return Planner(
            sizes=network.sizes(),
            units_a_layer=network.units_a_layer,
            devices=devices,
            stages=self.stages or devices,
            batch=batch,
            **{name: getattr(self, name) for name in names},
        )
