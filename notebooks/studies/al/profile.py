"""Profile models: every layer of one under associated learning, every block of one under backprop.

costs = profile(to_al(blocks, num_classes=10), batches)
balanced_cuts([cost.seconds for cost in costs], 2)
"""

import copy
from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import Tensor

from alkit.al.backprop import BPModel
from alkit.al.model import ALModel
from alkit.al.stages import Epoch, updating
from alkit.engine.costs import BlockCost, Row, backprop_row, profile_rows
from alkit.engine.optimizers import adam
from alkit.schedule.task import al


def profile(
    model: ALModel | BPModel, batches: Iterable[tuple[Any, Tensor]], **options: Any
) -> list[BlockCost]:
    """Measure a copy of the model, layer by layer or block by block.

    Args:
        options: see `alkit.engine.costs.profile_rows`: warmup, threads, busy, progress.
    """
    if isinstance(model, BPModel):
        return profile_rows(partial(backprop_row, model, model.loss_fn, adam), batches, **options)
    fed = Epoch(copy.deepcopy(model)).counted(batches)
    return profile_rows(partial(_row, model), fed, **options)


def _row(model: ALModel) -> Row:
    copied = copy.deepcopy(model)
    stages = Epoch(copied).stages
    return Row(updating(copied), stages, al(len(stages)))
