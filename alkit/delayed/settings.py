"""Settings of a run of delayed gradients besides its method."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from alkit.base.arguments import check_real, check_whole
from alkit.delayed.methods import ORDERS, Method
from alkit.delayed.schedules import Own


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options that `alkit.fit` and `train_epoch` take by name for these methods.

    Attributes:
        cuts: the first block of every module but the first; "balanced": modules of equal measured
            time, as near as blocks allow.
        micro: micro-batches of a batch, of flushed methods and 2bw.
        schedule: see `alkit.delayed.train_epoch`.
        clip: largest norm of all gradients together, of flushed methods.
        recompute: of flushed methods: where several micro-batches are in flight, keep only their
            inputs, and run each forward again for its backward, with the same noise.
        replay_noise: a forward that is run again draws the same noise as the first time.
        correction: of old gradients: makes each module's `stage.Correction` from (method, delay,
            optimizer), anew in every epoch.
    """

    cuts: Sequence[int] | str | None = None
    micro: int = 1
    schedule: Own | None = None
    clip: float | None = None
    recompute: bool = False
    replay_noise: bool = True
    correction: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        check_real("clip", self.clip)
        check_whole(micro=self.micro)
        if isinstance(self.cuts, int):
            raise TypeError(f"cuts is {self.cuts}: give a list, [{self.cuts}]")

    def check(self, method: Method) -> None:
        """Refuse settings that a method would not read."""
        name, flushed = method.name, method.order == "flushed"
        if self.clip is not None and not flushed:
            raise TypeError(
                f"{name} takes no clip=: give optimizer=alkit.clipped(torch.optim.Adam, NORM), a"
                " norm for each module, for none waits for all"
            )
        if self.recompute and not flushed:
            names = ", ".join(ORDERS)
            raise ValueError(f"recompute is True, which {name} can't take: it is of {names}")
        if not self.replay_noise and not (self.recompute or method.runs_again):
            raise ValueError(f"replay_noise is False, and {name} runs no forward again: fr does")
