"""What a run of delayed gradients may vary beside its method."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import Tensor

from alkit.base.arguments import check_real, check_whole
from alkit.delayed.correction import Correction
from alkit.delayed.schedules import Own
from alkit.engine.costs import Ledger

BATCH_NORM = ("play", "replay", "both")


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a run and each of its epochs are told alike.

    Attributes:
        clip: largest norm of all gradients together, of flushed methods; None for no limit.
        recompute: of flushed methods: where several micro-batches are in flight, keep their inputs
            alone, and run each forward again for its backward, with the same noise.
        replay_noise: a forward that is run again draws the same noise as the first time.
        batch_norm: which forwards move running statistics: the first ("play"), the one that is run
            again ("replay"), or "both", as the published FR code does.
        correction: of old gradients, see `alkit.delayed.correction`. Its state begins anew with
            every epoch.
    """

    clip: float | None = None
    recompute: bool = False
    replay_noise: bool = True
    batch_norm: str = "play"
    correction: Correction | None = None

    def __post_init__(self) -> None:
        check_real("clip", self.clip)
        if self.batch_norm not in BATCH_NORM:
            raise ValueError(f"batch_norm is {self.batch_norm!r}: give {', '.join(BATCH_NORM)}")


@dataclass(frozen=True, kw_only=True)
class Settings(Choices):
    """What `alkit.fit` takes by name for these methods.

    Attributes:
        cuts: the first block of every module but the first; "balanced": modules of equal measured
            time, as near as blocks allow.
        micro: micro-batches of a batch, of flushed methods and 2bw.
        rates: factors of the learning rate, one a module.
        schedule: see `alkit.delayed.train_epoch`.
    """

    cuts: Sequence[int] | str | None = None
    micro: int = 1
    rates: Sequence[float] | None = None
    schedule: Own | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(micro=self.micro)
        if isinstance(self.cuts, int):
            raise TypeError(f"cuts is {self.cuts}: give a list, [{self.cuts}]")


@dataclass(frozen=True, kw_only=True)
class Options(Choices):
    """Settings of an epoch, the same for all modules.

    Attributes:
        seed: dropout and other noise are a function of it, the block and the batch's number.
        rate: factor of the learning rate by the number of the batch that is applied, counted over
            all epochs.
        check_finite: raise at a loss that is not finite.
        ledgers: count what the graphs keep, one a module.
    """

    seed: int = 0
    rate: Callable[[int], float] | None = None
    check_finite: bool = True
    ledgers: Sequence[Ledger] | None = None

    @property
    def play_moves(self) -> bool:
        """Whether the first forward moves buffers, if another one follows."""
        return self.batch_norm != "replay"

    @property
    def replay_moves(self) -> bool:
        """Whether the forward that is run again moves buffers."""
        return self.batch_norm != "play"

    def recording(self, index: int, *own: Iterable[Tensor]) -> AbstractContextManager[None]:
        """Count in the ledger of a module, if there is one."""
        return nullcontext() if self.ledgers is None else self.ledgers[index].recording(*own)
