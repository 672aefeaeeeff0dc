"""What a training leaves behind."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from alkit.data.arguments import Brief
from alkit.schedule.timeline import Timeline

__all__ = ["Record", "digest"]


@dataclass(frozen=True, repr=False)
class Record(Brief):
    """What training left, the same on all ranks.

    Attributes:
        losses: (steps,), of the output.
        feedback_losses: by block, (steps, K_n).
        history: a row an epoch: loss, val_acc, lr of its last step, train_s, in which data_s is
            waiting for batches, and of rank 0 the seconds in loops (feedback_s) and waiting for
            others' (receive_s).
        angles: rows of `alkit.dtp.compare`, by epoch.
        loads: seconds of each loop for a batch, as assigned by; owners: each loop's rank.
        seconds: by rank, kind and block, of all steps of this call.
        timeline: of its first steps.
        test_correct: float (N,) on the test part after the last step; None without one, or where
            targets are no classes.
        metrics: what was measured on the test part.
        state: of the network; digest: SHA-256 of all its bits.
    """

    losses: Tensor
    feedback_losses: dict[int, Tensor]
    history: pd.DataFrame
    angles: pd.DataFrame
    loads: list[float]
    owners: list[int]
    seconds: pd.DataFrame
    timeline: Timeline
    test_correct: Tensor | None
    metrics: Mapping[str, float]
    state: dict[str, Tensor]
    digest: str

    @property
    def test_acc(self) -> float | None:
        """Accuracy on the test part, 0 to 1; None without one."""
        return None if self.test_correct is None else float(self.test_correct.mean())


def digest(net: nn.Module) -> str:
    """Return the SHA-256 of all weights, forward and feedback."""
    made = hashlib.sha256()
    for tensor in net.state_dict().values():
        made.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return made.hexdigest()
