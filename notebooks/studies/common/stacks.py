"""Stacks of blocks to time methods on: the same blocks, weights and random batches for all of them.

Time does not depend on what the numbers are, so the batches are random; all texts are of full
length, so that no method gains from how it treats padding.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from alkit.al.backprop import BPModel
from alkit.al.convert import to_al, to_bp
from alkit.al.model import ALModel
from alkit.al.train import Trained, train_epoch
from alkit.data.labels import one_hot
from studies.al.networks import BiLSTM, EncoderBlock, vgg_al
from studies.common.resnet_cifar import resnet_cifar

KINDS = ("transformer", "lstm", "vgg", "resnet20")
PICTURES = ("vgg", "resnet20")
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
        fixed = {"vgg": 4, "resnet20": 10}.get(self.kind, self.layers)  # beside the BP twin's head
        if self.kind not in KINDS or self.layers != fixed:
            raise ValueError(
                f"{self.layers} layers of {self.kind!r}: give {', '.join(KINDS)}, {fixed}"
            )

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
