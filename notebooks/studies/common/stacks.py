"""Stacks of blocks to time methods on: the same blocks, weights and random batches for all of them.

Time does not depend on what the numbers are, so the batches are random; all texts are of full
length, so that no method gains from how it treats padding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from alkit.al.backprop import BPModel
from alkit.al.convert import to_al, to_bp
from alkit.al.model import ALModel
from alkit.al.train import Trained, train_epoch
from alkit.data.labels import one_hot
from alkit.schedule.clock import Durations, simulate
from alkit.schedule.flushed import block_by_block
from alkit.schedule.task import Schedule, al_pipeline
from studies.al.networks import BiLSTM, EncoderBlock, vgg_al
from studies.al.profile import Cost, profile
from studies.common.resnet_cifar import resnet_cifar

KINDS = ("transformer", "lstm", "vgg", "resnet20")
PICTURES = ("vgg", "resnet20")
FIXED = {"vgg": 4, "resnet20": 10}  # blocks, beside the BP twin's head
CLASSES = 4
Batch = tuple[Any, Tensor]


@dataclass(frozen=True)
class Stack:
    """Blocks and batches of random numbers.

    Attributes:
        layers: equal blocks; VGG has four and ResNet-20 ten, not equal.
        width: features of a token; of VGG and ResNet, the channels of the first convolution.
        heads, ffn: of the Transformer.
        texts: samples per batch; pictures of 32 x 32 for VGG and ResNet.
        tokens: of a text.
        kind: one of KINDS.
    """

    layers: int = 4
    width: int = 300
    heads: int = 6
    ffn: int = 512
    texts: int = 32
    tokens: int = 60
    batches: int = 20
    dropout: float = 0.1
    seed: int = 0
    kind: str = "transformer"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}: give {', '.join(KINDS)}")
        if self.kind in FIXED and self.layers != FIXED[self.kind]:
            raise ValueError(f"{self.kind} has {FIXED[self.kind]} blocks, not {self.layers}")

    def blocks(self) -> list[nn.Module]:
        """Make the blocks, with the same weights every time."""
        torch.manual_seed(self.seed)
        if self.kind == "vgg":
            return list(vgg_al(self.width / 128))
        if self.kind == "resnet20":
            return resnet_cifar(20, width=self.width)[:-1]  # the twin brings a head
        if self.kind == "lstm":
            return [BiLSTM(self.width, self.width // 2) for _ in range(self.layers)]
        sizes = (self.width, self.heads, self.ffn, self.dropout)
        return [EncoderBlock(*sizes) for _ in range(self.layers)]

    def model(self, kind: str = "al") -> ALModel | BPModel:
        """Make the AL model, or with "bp" its BP twin; the same weights every time."""
        blocks, (sample, _) = self.blocks(), next(self.stream())
        if kind == "bp":
            return to_bp(blocks, CLASSES, sample)
        return to_al(blocks, CLASSES, sample, recipe="mse")

    def stream(self) -> Iterator[Batch]:
        """Yield the batches, the same ones every time: (x, y one-hot (B, 4)).

        x is (x_BTD, mask_BT) for texts and (B, 3, 32, 32) for pictures.
        """
        generator = torch.Generator().manual_seed(self.seed)
        mask_BT = torch.ones(self.texts, self.tokens, dtype=torch.bool)
        y = one_hot(torch.arange(self.texts) % CLASSES, CLASSES)
        for _ in range(self.batches):
            if self.kind in PICTURES:
                yield torch.randn(self.texts, 3, 32, 32, generator=generator), y
                continue
            x_BTD = torch.randn(self.texts, self.tokens, self.width, generator=generator)
            yield (x_BTD, mask_BT), y

    def train(self, mode: str, **options: Any) -> Trained:
        """Make a model and train it on all batches; options are those of `train_epoch`.

        Model and batches are made before the clock starts.
        """
        model, batches = self.model("bp" if mode == "bp" else "al"), list(self.stream())
        return train_epoch(model, batches, mode, **options)

    def costs(self, kind: str = "al", *, busy: int = 2, batches: int = 8) -> list[Cost]:
        """Profile the layers, or with "bp" the blocks, while other cores do the same work."""
        some = list(islice(self.stream(), batches))
        return profile(self.model(kind), some, warmup=1, busy=busy)

    def predict(self, cuts: Sequence[int], costs: Sequence[Cost] | None = None) -> Trained:
        """Return what al_pipeline should take, a worker a core: the clock, fed with busy times.

        Args:
            costs: of the layers; by default measured now, with as many cores at work as workers.
        """
        schedule = al_pipeline(self.layers, cuts)
        costs = costs or self.costs(busy=schedule.workers, batches=self.batches)
        return self._virtual(
            schedule, lambda task: getattr(costs[task.stage], f"{task.kind}_s"), tuple(cuts)
        )

    def ideal(self, workers: int) -> Trained:
        """Return what `workers` workers should take that never wait: all costs, over their number.

        Costs are measured now, with as many cores at work as workers.
        """
        costs = self.costs(busy=workers, batches=self.batches)
        share = sum(cost.seconds for cost in costs) / workers
        seconds = {("forward", 0): share, ("backward", 0): 0.0, ("update", 0): 0.0}
        return self._virtual(block_by_block(1), seconds)

    def _virtual(
        self, schedule: Schedule, seconds: Durations, cuts: tuple[int, ...] = ()
    ) -> Trained:
        timeline = simulate(schedule, seconds, self.batches)
        return Trained(torch.empty(0), timeline, timeline.span_s, self.batches * self.texts, cuts)
