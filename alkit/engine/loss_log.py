"""A stage's losses, batch by batch, and the look at them that ends a run which has diverged."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

LOOK_EVERY = 32  # batches, on an accelerator


class LossLog:
    """The losses of a stage, a row a batch.

    To look at a number that an accelerator computes is to wait for it. There the losses of many
    batches are fetched at once: an error comes up to `LOOK_EVERY` batches late, and still names its
    batch. On the CPU every row is looked at when it is noted.

    Args:
        diverged: makes an exception of (batch, column, value); None: nothing is looked at.
    """

    def __init__(self, diverged: Callable[[int, int, float], Exception] | None = None) -> None:
        self.diverged = diverged
        self.seen: list[Tensor] = []  # rows on the host
        self.unseen: list[Tensor] = []  # where they were computed

    def __len__(self) -> int:
        return len(self.seen) + len(self.unseen)

    def note(self, row: Tensor) -> None:
        """Take in the losses of the next batch, (columns,).

        Raises:
            Exception: what `diverged` makes of the first loss that is not finite.
        """
        self.unseen.append(row.detach())
        if row.device.type == "cpu" or len(self.unseen) == LOOK_EVERY:
            self.look()

    def look(self) -> None:
        """Fetch what has not been looked at; raises as `note` does."""
        if not self.unseen:
            return
        fetched = self.unseen[0][None] if len(self.unseen) == 1 else torch.stack(self.unseen)
        first, self.unseen = len(self.seen), []
        rows = fetched.cpu()
        self.seen += rows.unbind()
        for at, row in enumerate(rows.tolist()):  # on the CPU ten times as fast as torch.isfinite
            for column, value in enumerate(row):
                if self.diverged is not None and not math.isfinite(value):
                    raise self.diverged(first + at, column, value)

    def take_over(self, rows: Tensor) -> None:
        """Have these rows in the place of all own ones: those of the rank that ran the stage."""
        self.seen, self.unseen = list(rows.unbind()), []

    def rows(self) -> Tensor:
        """Return all of them, float or double (batches, columns); raises as `note` does."""
        self.look()
        rows = torch.stack(self.seen)
        return rows.to(torch.promote_types(rows.dtype, torch.float32))
