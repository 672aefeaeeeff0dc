"""Settings of elastic training, besides the arguments of every method."""

from dataclasses import dataclass

from alkit.base.arguments import check_real
from alkit.elastic.freeze import Policy, policy
from alkit.schedule.flushed import gpipe, one_f_one_b

SCHEDULES = {"1f1b": one_f_one_b, "gpipe": gpipe}


@dataclass(frozen=True)
class Settings:
    """Settings of elastic training.

    Attributes:
        freeze: "none", "schedule" or "gradnorm", or a function of an
            `alkit.elastic.freeze.Observation`, which decides before every epoch but the first.
        alpha: share of the active layers that the two rules freeze at most.
        pipe: whether frozen layers leave the pipeline, so that stages change.
        dp, cache: whether replicas are added then, and outputs of frozen layers stored, see
            `alkit.elastic.layout`.
        stages: of a replica at first, a power of two that divides the devices, which are workers
            or ranks; 0 for as many as devices.
        micro: micro-batches at most; 0 for the published table, and for 1 on one device.
        schedule: of a batch: "1f1b", or "gpipe" as published.
        growing: whether a replica keeps its batch where there are more of them, as published; by
            default training is the same whatever the layout.
        clip: largest norm of all gradients together; None for no limit.
        budget: millions of parameters of the largest stage that a device holds; None: of the
            largest one before anything was frozen, as published.
    """

    freeze: str | Policy = "none"
    alpha: float = 1 / 3
    pipe: bool = True
    dp: bool = True
    cache: bool = True
    stages: int = 0
    micro: int = 0
    schedule: str = "1f1b"
    growing: bool = False
    clip: float | None = None
    budget: float | None = None

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule is {self.schedule!r}: give {', '.join(SCHEDULES)}")
        policy(self.freeze, self.alpha)  # raises now if it is wrong
        check_real("clip", self.clip)
