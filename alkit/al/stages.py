"""What the engine runs: AL layers, whole models or single blocks, and the epoch they belong to.

A stage knows the mathematics of a forward, a backward and an update; the schedule decides when.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from alkit.al.backprop import BPModel
from alkit.al.layers import AL
from alkit.al.model import ALModel
from alkit.base import tree
from alkit.data.pairs import as_pair
from alkit.engine.costs import Ledger
from alkit.engine.device import beside, device_of, place
from alkit.engine.loss_log import LossLog
from alkit.engine.random import noise_of
from alkit.engine.stage import Stage
from alkit.engine.steps import backward, check_reached, step


class Epoch:
    """One epoch's stages, and what they write down.

    Attributes:
        stages: one a layer of an `ALModel`, and its head; a `BPModel` is one stage.
        ran: what is run of them: themselves, or their compiled steps.
        batches, samples: counted as they are fed.
    """

    def __init__(
        self,
        model: ALModel | BPModel,
        seed: int = 0,
        ledgers: Sequence[Ledger] | None = None,
    ) -> None:
        self.model, self.seed = model, seed
        self.first_batch = int(model.batches_trained)
        self.batches = self.samples = 0
        if isinstance(model, BPModel):
            self.stages: list[LayerStage | ModelStage] = [ModelStage(self, model)]
        else:
            self.stages = [LayerStage(self, layer, i) for i, layer in enumerate(model)]
            if model.head is not None:
                self.stages.append(ModelStage(self, model.head, len(model)))
        self.by_stage = [LossLog(partial(self._diverged, at)) for at in range(len(self.stages))]
        self.ran: Sequence[Stage] = self.stages
        if ledgers is not None and len(ledgers) != len(self.stages):
            raise ValueError(f"{len(ledgers)} ledgers for {len(self.stages)} stages: give one each")
        self.ledgers = ledgers

    def counted(self, batches: Iterable[tuple[Any, Tensor]]) -> Iterator[tuple[Any, ...]]:
        """Pass the batches on with labels as the first stage takes them, and count.

        For a head at the top the labels travel along as they are.
        """
        for number, batch in enumerate(batches):
            x, y = as_pair(batch, number)
            self.batches += 1
            self.samples += tree.batch_size(x)
            beside = () if self.head is None else (y,)
            yield x, self.model.label_input(y), *beside

    @property
    def head(self) -> BPModel | None:
        """What stands on top of the layers."""
        return None if isinstance(self.model, BPModel) else self.model.head

    def losses(self) -> Tensor:
        """Return what was noted, float (batches, stages, losses); raises if one is not finite."""
        layers = self.by_stage[: len(self.by_stage) - (self.head is not None)]
        return torch.stack([own.rows() for own in layers], dim=1)

    def head_losses(self) -> Tensor | None:
        """Return the losses of the head, float (batches,)."""
        return None if self.head is None else self.by_stage[-1].rows()[:, 0]

    def _diverged(self, stage: int, batch: int, column: int, value: float) -> FloatingPointError:
        name = ("associated", "autoencoder")[column]
        whole = isinstance(self.stages[stage], ModelStage)
        which = "loss" if whole else f"{name} loss of layer {stage}"
        which += " of the head" if whole and stage else ""
        return FloatingPointError(
            f"the {which} is {value} at batch {batch}: lower the learning rate, or look at this"
            " batch"
        )

    def number(self, batch: int) -> int:
        """Return the number of a batch among all that the model was trained on."""
        return self.first_batch + batch

    def counting(self, stage: int) -> AbstractContextManager[None]:
        """Let the stage's ledger count what a forward saves."""
        return nullcontext() if self.ledgers is None else self.ledgers[stage].recording()


def updating(model: ALModel | BPModel) -> list[AL | BPModel]:
    """Return the parts that update by themselves: AL's layers and head, or all of BP's."""
    if isinstance(model, BPModel):
        return [model]
    return [*model] if model.head is None else [*model, model.head]


def optimizers_of(part: AL | BPModel) -> Iterable[torch.optim.Optimizer | None]:
    """Return the optimisers of such a part."""
    return [part.optimizer] if isinstance(part, BPModel) else part.optimizers.values()


class LayerStage:
    """An AL layer as a stage."""

    def __init__(self, epoch: Epoch, layer: AL, index: int) -> None:
        self.epoch, self.layer, self.index = epoch, layer, index
        self.device = device_of(layer)

    def forward(self, payload: tuple[Any, ...], batch: int, micro: int) -> tuple[Any, ...]:
        """Take (s, t) of the layer below, hand on the layer's own, and what else travels along."""
        x, y, *beside = place(payload, self.layer)
        epoch = self.epoch
        noise = noise_of(self.layer, epoch.seed, self.index, epoch.number(batch))
        with noise, epoch.counting(self.index):
            handed_on = self.layer(x, y)
        assert self.layer.losses is not None  # a forward leaves them
        epoch.by_stage[self.index].note(torch.stack(self.layer.losses))
        return *handed_on, *beside

    def backward(self, payload: None, batch: int, micro: int) -> None:
        """Compute the gradients of the layer's two losses."""
        self.layer.backward()

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step the layer's optimisers."""
        self.layer.update()


class ModelStage:
    """A whole model under backprop, as the only stage; or a head, as the last one."""

    def __init__(self, epoch: Epoch, model: BPModel, index: int = 0) -> None:
        self.epoch, self.model, self.index = epoch, model, index
        self.loss = torch.zeros(())
        self.device = device_of(model)
        beside(model.loss_fn, model)

    def forward(self, payload: tuple[Any, ...], batch: int, micro: int) -> None:
        """Take a batch, x first and y last, and keep its loss."""
        key = self.epoch.seed, self.epoch.number(batch)
        with self.epoch.counting(self.index):
            self.loss = self.model.loss(payload[0], payload[-1], key=key)
        self.epoch.by_stage[self.index].note(self.loss.view(1))

    def backward(self, payload: None, batch: int, micro: int) -> None:
        """Back-propagate through all blocks."""
        backward(self.model, [self.loss])
        if not self.epoch.number(batch):
            check_reached(self.model)
        self.loss = self.loss.detach()

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step the optimiser."""
        step(self.model.optimizer, self.model.clip)
