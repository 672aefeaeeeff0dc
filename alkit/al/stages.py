"""Stages for the engine: AL layers, whole models or heads, and the epoch they belong to.

A stage knows the mathematics of a forward, a backward and an update; the schedule decides when.

as it is   F B U   three tasks, a hundred operators
compiled   F . U   one call, after which the backward has nothing left to do
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from alkit.al.backprop import BPModel, compared, own_loss
from alkit.al.codes import Codes
from alkit.al.layers import AL, both
from alkit.al.model import ALModel
from alkit.base import tree
from alkit.data.given import as_pair
from alkit.engine.compiled import Compile, Step
from alkit.engine.device import beside, place
from alkit.engine.losses import LossLog
from alkit.engine.optimizers import backward, check_reached, step
from alkit.engine.random import noise_of

_STEPS: WeakKeyDictionary[nn.Module, Step] = WeakKeyDictionary()


class Epoch:
    """The stages of one epoch, and their notes.

    There is one a layer of an `ALModel`, and its head; a `BPModel` is one stage.
    """

    def __init__(self, model: ALModel | BPModel, seed: int = 0, compile: Compile = False) -> None:
        self.model, self.seed = model, seed
        self.first_batch = int(model.batches_trained)
        self.batches = self.samples = 0
        kind = WholeStage if compile else PartStage
        self.stages = [kind(self, part, at) for at, part in enumerate(updating(model))]
        self.by_stage = [LossLog() for _ in self.stages]

    def counted(self, batches: Iterable[tuple[Any, Tensor]]) -> Iterator[tuple[Any, ...]]:
        """Pass the batches on with labels as the first stage takes them, and count.

        For a head at the top the labels travel along as they are.
        """
        for number, batch in enumerate(batches):
            x, y = as_pair(batch, number)
            self.batches += 1
            self.samples += tree.batch_size(x)
            beside = () if self.model.head is None else (y,)
            yield x, self.model.label_input(y), *beside

    def losses(self) -> Tensor:
        """Return the noted losses, float (batches, stages, losses)."""
        layers = self.by_stage[: len(self.by_stage) - (self.model.head is not None)]
        return torch.stack([own.rows() for own in layers], dim=1)

    def head_losses(self) -> Tensor | None:
        """Return the losses of the head, float (batches,)."""
        return None if self.model.head is None else self.by_stage[-1].rows()[:, 0]


def updating(model: ALModel | BPModel) -> list[AL | BPModel]:
    """Return the parts that update by themselves: the layers and head of AL, or the BP model."""
    if isinstance(model, BPModel):
        return [model]
    return [*model] if model.head is None else [*model, model.head]


class PartStage:
    """An AL layer, a head above them (the last stage), or a whole model under backprop."""

    def __init__(self, epoch: Epoch, part: AL | BPModel, index: int) -> None:
        self.epoch, self.part, self.index = epoch, part, index
        self.loss = torch.zeros(())  # of a head, or a whole model
        if isinstance(part, BPModel):
            beside(part.loss_fn, part)

    @property
    def parts(self) -> list[Any]:
        """The parts that training changes."""
        part = self.part
        own = [*part.optimizers.values()] if isinstance(part, AL) else [part.optimizer]
        return [part, *(each for each in own if each), self.epoch.by_stage[self.index]]

    def forward(self, payload: tuple[Any, ...], batch: int, micro: int) -> tuple[Any, ...] | None:
        """Take (s, t) of the layer below, hand on new ones, and all else that travels along.

        A head, or a whole model, takes the first and the last of these, and hands on nothing.
        """
        epoch, number = self.epoch, self.epoch.first_batch + batch
        if isinstance(self.part, BPModel):
            self.loss = self.part.loss(payload[0], payload[-1], key=(epoch.seed, number))
            epoch.by_stage[self.index].note(self.loss.view(1))
            return None
        x, y, *others = place(payload, self.part)
        with noise_of(self.part, epoch.seed, self.index, number):
            handed_on = self.part(x, y)
        assert self.part.losses is not None  # a forward leaves them
        epoch.by_stage[self.index].note(torch.stack(self.part.losses))
        return *handed_on, *others

    def backward(self, payload: None, batch: int, micro: int) -> None:
        """Compute the gradients."""
        if isinstance(self.part, AL):
            self.part.backward()
        else:
            backward(self.part, [self.loss])
            self.loss = self.loss.detach()
        self._look(batch)

    def _look(self, batch: int) -> None:
        """See, after the first batch, that the user's blocks learn."""
        if self.epoch.first_batch + batch == 0:
            part = self.part
            blocks = part if isinstance(part, BPModel) else [part.enc.get_submodule("f")]
            check_reached(blocks, getattr(part, "first", self.index))

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step the optimisers."""
        if isinstance(self.part, AL):
            self.part.update()
        else:
            step(self.part.optimizer, self.part.clip)


class WholeStage(PartStage):
    """A stage whose forward and backward are one compiled call, if that can be."""

    def __init__(self, epoch: Epoch, part: AL | BPModel, index: int) -> None:
        super().__init__(epoch, part, index)
        self.step, self.done = _step_of(part), False

    def forward(self, payload: tuple[Any, ...], batch: int, micro: int) -> tuple[Any, ...] | None:
        """Run the forward of the stage, and if it is compiled the backward as well."""
        if self.step.why:
            return super().forward(payload, batch, micro)
        x, y, *others = place(payload, self.part)
        once_a_sample = not isinstance(y, Codes)
        x, y = self.part.taken(x, y) if isinstance(self.part, AL) else (x, payload[-1])
        found = self.step(x, y)
        self.done = found is not None
        if found is None:
            return super().forward(payload, batch, micro)
        self.epoch.by_stage[self.index].note(found[0])
        if isinstance(self.part, BPModel):
            return None
        self.part.learned(*found[0])
        s, t = found[1]
        return s, t.gathered() if once_a_sample and isinstance(t, Codes) else t, *others

    def backward(self, payload: None, batch: int, micro: int) -> None:
        """Compute the gradients, if the forward has not."""
        if not self.done:
            super().backward(payload, batch, micro)
        else:
            self._look(batch)


def _compared(blocks: nn.ModuleList, loss_fn: Any, x: Any, y: Tensor) -> Any:
    """Return the loss of backprop; nothing is handed on."""
    for block in blocks:
        x = block(x)
    return (compared(loss_fn, x, y),), ()


def _step_of(part: AL | BPModel) -> Step:
    """Return the compiled step of a part, the one of the epoch before if it stands."""
    parts: Any = (part.enc, part.ae) if isinstance(part, AL) else (part.blocks, part.loss_fn)
    function = partial(both, coupled=part.coupled) if isinstance(part, AL) else _compared
    held = _STEPS.get(part)
    if held is None or not held.stands(parts):
        held = _STEPS[part] = Step(function, parts)
    own = getattr(part, "loss_fn", None) is own_loss
    if own or type(part).forward not in (AL.forward, BPModel.forward):
        held.why = f"{type(part).__name__} has a {'loss' if own else 'forward'} of its own"
    return held
