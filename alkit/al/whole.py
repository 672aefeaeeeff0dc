"""Stages whose whole step is one compiled call, run in their forward: AL's layers, heads, backprop.

as it is   F B U   three tasks, a hundred operators
compiled   F . .   backward and update have nothing left to do
"""

from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from alkit.al.backprop import BPModel, compared
from alkit.al.codes import Codes
from alkit.al.layers import AL, both
from alkit.al.stages import LayerStage, ModelStage, optimizers_of
from alkit.engine.compiled import Step
from alkit.engine.device import place
from alkit.engine.steps import check_reached

_STEPS: WeakKeyDictionary[nn.Module, Step] = WeakKeyDictionary()


class _LayerLosses(nn.Module):
    """The mathematics of an AL layer."""

    def __init__(self, layer: AL) -> None:
        super().__init__()
        self.enc, self.ae, self.coupled = layer.enc, layer.ae, layer.coupled

    def forward(self, x: Any, y: Tensor | Codes) -> Any:
        """Return the two losses, and s and t."""
        return both(self.enc, self.ae, x, y, coupled=self.coupled)


class _ModelLosses(nn.Module):
    """The mathematics of backprop."""

    def __init__(self, model: BPModel) -> None:
        super().__init__()
        self.blocks, self.loss_fn = model.blocks, model.loss_fn

    def forward(self, x: Any, y: Tensor) -> Any:
        """Return the loss; nothing is handed on."""
        for block in self.blocks:
            x = block(x)
        return (compared(self.loss_fn, x, y),), ()


class WholeStage:
    """A stage whose step is compiled, if that can be."""

    def __init__(self, stage: LayerStage | ModelStage) -> None:
        self.stage, self.device = stage, stage.device
        self.part = stage.layer if isinstance(stage, LayerStage) else stage.model
        self.step = _step_of(self.part)
        self.done = False

    def forward(self, payload: tuple[Any, ...], batch: int, micro: int) -> Any:
        """Do what the stage's forward does, and if it is compiled all else of the step."""
        stage, epoch = self.stage, self.stage.epoch
        if self.step.why:
            return stage.forward(payload, batch, micro)
        x, y, *beside = place(payload, self.part)
        once_a_sample = not isinstance(y, Codes)
        if isinstance(self.part, AL):
            x, y = self.part.taken(x, y)
        else:  # above AL's layers, codes come before the labels
            y = payload[-1]
        found = self.step(x, y)
        self.done = found is not None
        if found is None:
            return stage.forward(payload, batch, micro)
        losses, handed_on = found
        epoch.by_stage[stage.index].note(losses)
        if isinstance(self.part, BPModel):
            if not epoch.number(batch):
                check_reached(self.part, {*map(id, self.step.learning.values())})
            return None
        self.part.losses = losses[0], losses[1]
        s, t = handed_on
        return s, t.gathered() if once_a_sample and isinstance(t, Codes) else t, *beside

    def backward(self, payload: None, batch: int, micro: int) -> None:
        """Compute the gradients, if the forward has not."""
        if not self.done:
            self.stage.backward(payload, batch, micro)

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step, if the forward has not."""
        if not self.done:
            self.stage.update(payload, batch, micro)


def _step_of(part: AL | BPModel) -> Step:
    """Return a part's compiled step, the one of the epoch before if it is for these optimisers."""
    optimizers, held = [*optimizers_of(part)], _STEPS.get(part)
    if held is None or not held.stands(optimizers):
        losses = _LayerLosses(part) if isinstance(part, AL) else _ModelLosses(part)
        held = _STEPS[part] = Step(losses, optimizers)
    if type(part).forward not in (AL.forward, BPModel.forward):
        held.why = f"{type(part).__name__} has a forward of its own"
    if getattr(part, "clip", None) is not None:
        held.why = "gradients are clipped before a step"
    return held
