"""The stack of AL layers: forward, prediction from any depth, counts."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from alkit.al.backprop import BPModel
from alkit.al.codes import Codes, shared, takes_codes
from alkit.al.layers import AL, label_rows
from alkit.engine.device import place
from alkit.engine.modes import evaluating
from alkit.engine.optimizers import check_untied


class ALModel(nn.Module):
    """A stack of AL layers; iterate and index it for the layers.

    Args:
        layers: AL layers from the input side; no parameter may belong to two of them.
        label_shortcut: run the label side once a class instead of once a sample, wherever labels
            are one-hot; the same gradients up to rounding.
        head: trained along with the layers, on detached features of the last one and the labels.
        read: where scores come from: the "head", if there is one, or the "code" and its decoders.
        num_classes: of class numbers as labels; default as the first label side shows.
    Raises:
        ValueError: `read` is something else, or asks for a head that is not there.
    """

    rule = ""  # the local rule that its layers train by

    def __init__(
        self,
        layers: Iterable[AL],
        *,
        label_shortcut: bool = False,
        head: BPModel | None = None,
        read: str | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        self.label_shortcut = label_shortcut
        self.head, self.num_classes = head, num_classes
        self.read = read or ("code" if head is None else "head")
        self._check_read(self.read)
        self.layers = cast("Sequence[AL]", nn.ModuleList(layers))
        check_untied("layers", self.layers)
        # batches trained on: randomness goes on from here, also after loading a state dict
        self.batches_trained: Tensor
        self.register_buffer("batches_trained", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[AL]:
        return iter(self.layers)

    def __getitem__(self, index: int) -> AL:
        return self.layers[index]

    def forward(self, x: Any, y: Tensor | None = None) -> Any:
        """Run all layers forward and return the last (s, t), detached, a row a sample.

        Without y, return the scores (B, C), as an ordinary network does.
        """
        if y is None:
            return self._scores(x, None, self.read)
        code = self.label_input(y)
        for layer in self.layers:
            x, code = place((x, code), layer)
            x, code = layer(x, code)
        return x, code.gathered() if isinstance(code, Codes) else code

    def label_input(self, y: Tensor) -> Tensor | Codes:
        """Return the input of the first label side: rows of y, or one row a class of it."""
        y = label_rows(y, self.layers[0].ae.g, self.num_classes)
        soft = any(takes_codes(layer.enc.loss_fn) for layer in self.layers)
        return shared(y, soft=soft) if self.label_shortcut else y

    @torch.no_grad()
    def predict(self, x: Any, depth: int | None = None, read: str | None = None) -> Tensor:
        """Return class scores (B, C): of the head, or of a code, as `read` says.

        Args:
            depth: layers to climb, 1 to all, to an exit that reads its code through b[depth],
                h[depth] .. h[1]; default all.
        """
        if depth is not None and not 1 <= depth <= len(self):
            raise ValueError(f"depth is {depth}: this model has exits 1 to {len(self)}")
        self._check_read(read := read or self.read)
        with evaluating(self):
            return self._scores(x, depth, read)

    def _check_read(self, read: str) -> None:
        allowed = ["code"] if self.head is None else ["head", "code"]
        if read not in allowed:
            raise ValueError(f"read is {read!r}: this model gives {' or '.join(allowed)}")

    def _scores(self, x: Any, depth: int | None, read: str) -> Tensor:
        by_head = depth is None and read == "head"
        depth = depth or len(self)
        for index in range(depth):
            x = self.layers[index].enc.f(place(x, self.layers[index]))
        if by_head and self.head is not None:
            return self.head(x)
        code = self.layers[depth - 1].enc.b(x)
        for index in reversed(range(depth)):
            code = self.layers[index].ae.h(place(code, self.layers[index]))
        return code

    def named_optimizers(self) -> dict[str, torch.optim.Optimizer | None]:
        """Return all optimisers by name: "0.enc", "0.ae", "1.enc", ..., and "head"."""
        layers = {
            f"{index}.{group}": optimizer
            for index, layer in enumerate(self)
            for group, optimizer in layer.optimizers.items()
        }
        return layers if self.head is None else layers | {"head": self.head.optimizer}

    def set_lr(self, groups: str | Sequence[str], lr: float) -> None:
        """Set the learning rate of "enc", "ae" or both in every layer."""
        for layer in self.layers:
            layer.set_lr(groups, lr)

    def loss(self) -> tuple[list[float], list[float]]:
        """Return the last associated and autoencoder losses, a number a layer each."""
        pairs = [layer.loss() for layer in self.layers]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def parameter_counts(self) -> dict[str, int]:
        """Return parameters that full inference uses (effective) and those of training only."""
        layers = [layer.parameter_counts() for layer in self.layers]
        head = 0 if self.head is None else sum(each.numel() for each in self.head.parameters())
        decoding = sum(n["h"] for n in layers) + layers[-1]["b"]
        effective = sum(n["f"] for n in layers) + (head if self.read == "head" else decoding)
        total = sum(sum(n.values()) for n in layers) + head
        return {"effective": effective, "affiliated": total - effective, "total": total}
