"""How good a network is: which samples are right, and how its gradients lie beside backprop's."""

from typing import Any

import torch
from torch import Tensor

from alkit.data.parts import Part
from alkit.dtp.angles import compare
from alkit.dtp.trainer import Trainer
from alkit.engine.heartbeat import beat

__all__ = ["correct", "gradient_angles"]

BATCH = 256  # samples at once
COMPARED = 256  # samples at most, for gradients beside backprop's


def correct(trainer: Trainer, part: Part) -> Tensor:
    """Return (N,), 1.0 for each sample that is right; the ranks share the work."""
    found, group = torch.zeros(len(part)), trainer.group
    for at, (x, y_onehot) in enumerate(part.batches(BATCH, shuffle=False)):
        if at % group.ranks == group.rank:
            beat("evaluation")
            right = trainer.predict(x).argmax(1) == y_onehot.argmax(1)
            found[at * BATCH : at * BATCH + len(x)] = right.float()
    return group.total(found)


def gradient_angles(trainer: Trainer, part: Part) -> list[dict[str, Any]]:
    """Return the rows of `alkit.dtp.compare` on the first samples; none with backprop."""
    if trainer.feedback is None:
        return []
    x, y_onehot = next(iter(part.batches(COMPARED, shuffle=False)))
    beta = trainer.settings.compare_beta
    made = compare(trainer.net, x, y_onehot, beta, feedback=trainer.feedback)
    return made.to_dict("records")
