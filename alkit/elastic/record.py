"""What a training leaves behind."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
from torch import Tensor

from alkit.data.arguments import Brief
from alkit.elastic.decision import Decision
from alkit.schedule.timeline import Timeline

__all__ = ["Record"]


@dataclass(frozen=True, repr=False)
class Record(Brief):
    """What training left, the same on all ranks.

    Attributes:
        losses: double (steps,).
        history: a row a segment; an epoch is one, unless decisions are made every few steps.
            Seconds: train_s, which frozen_s, read_s, pipe_s, reduce_s and update_s of rank 0 add up
            to, change_s of decisions, eval_s.
        messages: all decisions.
        lines: the log of rank 0.
        timeline: of the last segment.
        beginnings: the first steps of every segment's timeline.
        skipped: steps that were left out, because their gradients were not finite.
        test_correct: the network's metric, float (N,), on the test part, after the last step; None
            without one.
        metrics: what was measured on the test part.
        held: a row a segment and rank, bytes by part, see `alkit.elastic.held`; counted in the
            segment's first step. Without ranks one process holds it all.
        state: of the trained network, by its names, whatever the layout was; on the CPU.
    """

    losses: Tensor
    history: pd.DataFrame
    messages: list[Decision]
    lines: list[str]
    timeline: Timeline
    beginnings: list[Timeline]
    skipped: list[int]
    test_correct: Tensor | None
    metrics: Mapping[str, float]
    held: pd.DataFrame
    state: dict[str, Tensor]
