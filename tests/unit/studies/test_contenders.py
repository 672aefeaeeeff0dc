"""Contenders of a race train the same stack; predictions and choices are made from measurements."""

from dataclasses import replace

import pytest
import torch

from alkit.al.train import Trained
from alkit.engine.device import cores
from alkit.schedule.timeline import Interval, Timeline
from studies.common import contenders
from studies.common.stacks import Stack

SMALL = Stack(layers=2, width=12, heads=2, ffn=8, texts=4, tokens=5, batches=4)


def test_on_ranks_and_threads_the_stack_learns_the_same():
    one, other = SMALL.train("al"), contenders.on_ranks(SMALL, [1])
    assert torch.equal(one.losses, other.losses)
    assert other.timeline.resources == ("worker 0", "worker 1")


def test_the_race_has_who_was_asked_for():
    asked = ["al", "al_pipeline, free", "al_fm, N workers", "simulated, cut", "ideal"]
    made = contenders.contenders(SMALL, asked)
    assert list(made) == [name.replace("N", str(cores())) for name in asked]
    assert torch.equal(made["al"]().losses, made[f"al_fm, {cores()} workers"]().losses)
    assert torch.equal(made["al"]().losses, made["al_pipeline, free"]().losses)
    exact = contenders.contenders(replace(SMALL, dropout=0.0), ["bp", "1f1b, free"], [2])
    seq, free = (exact[name]().losses.flatten() for name in ("bp", "1f1b, free"))
    assert torch.allclose(seq, free, rtol=1e-5)  # sums of two halves
    assert made["simulated, cut"]().samples == made["ideal"]().samples == 16
    with pytest.raises(ValueError, match=r"\['tp'\]: give some of al, "):
        contenders.contenders(SMALL, ["al", "tp"])


def test_the_fastest_number_of_micro_batches_is_taken():
    def fake(stack, micro):
        step_s = {2: 3.0, 4: 1.0}[micro]
        ends = [Interval("worker 0", "step", 0, t, 0, t * step_s, (t + 1) * step_s) for t in (0, 1)]
        return Trained(torch.empty(0), Timeline.of(ends, ["worker 0"]), 8, 1.0)

    assert contenders.fastest_micro(SMALL, fake, [2, 3, 4, 8]) == 4
    assert contenders.fastest_micro(SMALL, fake, [2, 3]) == 2
    with pytest.raises(ValueError, match=r"none of \[3, 8\] divides a batch of 4"):
        contenders.fastest_micro(SMALL, fake, [3, 8])
