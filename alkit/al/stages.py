"""What the engine runs: AL layers, whole models or single blocks, and the epoch they belong to.

A stage knows the mathematics of a forward, a backward and an update; the schedule decides when.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from alkit.al.backprop import BPModel
from alkit.al.layers import AL
from alkit.al.model import ALModel
from alkit.data import tree
from alkit.data.arguments import as_pair
from alkit.engine.device import place
from alkit.engine.ledger import Ledger
from alkit.engine.random import random_from

__all__ = ["Epoch", "LayerStage", "ModelStage"]


class Epoch:
    """One epoch's stages, and what they write down.

    Attributes:
        stages: one a layer of an `ALModel`; a `BPModel` is one stage.
        offset: batches of this epoch that ran in an earlier part.
        batches, samples: counted as they are fed.
    """

    def __init__(
        self,
        model: ALModel | BPModel,
        seed: int = 0,
        check_finite: bool = True,
        ledgers: Sequence[Ledger] | None = None,
    ) -> None:
        self.model, self.seed, self.check_finite = model, seed, check_finite
        self.first_batch = int(model.batches_trained)
        self.offset = self.batches = self.samples = 0
        if isinstance(model, BPModel):
            self.stages: list[ModelStage] | list[LayerStage] = [ModelStage(self, model)]
        else:
            self.stages = [LayerStage(self, layer, i) for i, layer in enumerate(model)]
        self.by_stage: list[list[tuple[Tensor, ...]]] = [[] for _ in self.stages]
        if ledgers is not None and len(ledgers) != len(self.stages):
            raise ValueError(f"{len(ledgers)} ledgers for {len(self.stages)} stages: give one each")
        self.ledgers = ledgers

    def counted(self, batches: Iterable[tuple[Any, Tensor]]) -> Iterator[tuple[Any, Any]]:
        """Pass the batches on with labels as the first stage takes them, and count."""
        for number, batch in enumerate(batches):
            x, y = as_pair(batch, number)
            self.batches += 1
            self.samples += tree.batch_size(x)
            yield x, self.model.label_input(y)

    def note(self, stage: int, batch: int, losses: tuple[Tensor, ...]) -> None:
        """Keep the losses of a forward, after a look at them."""
        if self.check_finite:
            for name, loss in zip(("associated", "autoencoder"), losses, strict=False):
                if not torch.isfinite(loss):
                    which = f"{name} loss of layer {stage}" if len(losses) == 2 else "loss"
                    raise FloatingPointError(
                        f"the {which} is {loss.item()} at batch {batch + self.offset}:"
                        " lower the learning rate, or look at this batch"
                    )
        self.by_stage[stage].append(tuple(loss.detach() for loss in losses))

    def losses(self) -> Tensor:
        """Return what was noted, float (batches, stages, losses)."""
        rows = [[torch.stack([v.cpu() for v in pair]) for pair in own] for own in self.by_stage]
        losses = torch.stack([torch.stack(own) for own in rows], dim=1)
        return losses.to(torch.promote_types(losses.dtype, torch.float32))

    def number(self, batch: int) -> int:
        """Return the number of a batch among all that the model was trained on."""
        return self.first_batch + self.offset + batch

    def counting(self, stage: int) -> AbstractContextManager[None]:
        """Let the stage's ledger count what a forward saves."""
        return nullcontext() if self.ledgers is None else self.ledgers[stage].recording()


class LayerStage:
    """An AL layer as a stage."""

    def __init__(self, epoch: Epoch, layer: AL, index: int) -> None:
        self.epoch, self.layer, self.index = epoch, layer, index

    def forward(self, payload: tuple[Any, Tensor], batch: int, micro: int) -> tuple[Any, Tensor]:
        """Take (s, t) of the layer below, hand on the layer's own."""
        x, y = place(payload, self.layer)
        epoch = self.epoch
        noise = random_from(epoch.seed, self.index, epoch.number(batch))
        with noise, epoch.counting(self.index):
            handed_on = self.layer(x, y)
        assert self.layer.losses is not None  # a forward leaves them
        self.epoch.note(self.index, batch, self.layer.losses)
        return handed_on

    def backward(self, payload: None, batch: int, micro: int) -> None:
        """Compute the gradients of the layer's two losses."""
        self.layer.backward()

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step the layer's optimisers."""
        self.layer.update()


class ModelStage:
    """A whole model under backprop, as the only stage."""

    def __init__(self, epoch: Epoch, model: BPModel) -> None:
        self.epoch, self.model, self.loss = epoch, model, torch.zeros(())

    def forward(self, payload: tuple[Any, Tensor], batch: int, micro: int) -> None:
        """Take a batch (x, y) and keep its loss."""
        key = self.epoch.seed, self.epoch.number(batch)
        with self.epoch.counting(0):
            self.loss = self.model.loss(*payload, key=key)
        self.epoch.note(0, batch, (self.loss,))

    def backward(self, payload: None, batch: int, micro: int) -> None:
        """Back-propagate through all blocks."""
        self.model.zero_grad(set_to_none=True)
        self.loss.backward()
        self.loss = self.loss.detach()

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step the optimiser."""
        self.model.optimizer.step()
