"""Modules whose layers are sent other errors than backprop's, see `alkit.delayed.feedback`."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from alkit.data import tree
from alkit.delayed.feedback import drawn, sending, signs
from alkit.delayed.layers import check_seen, learning, starts_of, tail_of
from alkit.delayed.stage import Flight, Key, ModuleStage, Place, leaf
from alkit.engine.stage import Inputs


class FeedbackStage(ModuleStage):
    """Every linear and convolutional operator sends errors back through its own B."""

    def __init__(self, *settings: Any, **named: Any) -> None:
        super().__init__(*settings, **named)
        self.drawn: dict[str, Tensor] = {}
        self.seen: set[str] = set()

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step, if all that has learned was seen: nothing is sent back exactly without a word."""
        if not self.first_batch + batch:
            check_seen(self.module, self.seen, self.gradients)
        super().update(payload, batch, micro)

    def _run(self, weights: Mapping[str, Tensor], x: Any, key: Key) -> Any:
        names = {id(weight): name for name, weight in weights.items()}
        feedback = signs if self.method.errors == "sign" else self._fixed
        with sending(feedback, names, self.seen):
            return self.module(x, key)

    def _fixed(self, name: str, weight: Tensor) -> Tensor:
        if name not in self.drawn:
            _, at, own = name.split(".", 2)  # blocks.0.conv.weight
            key = self.options.seed, "feedback", self.module.first + int(at), own
            self.drawn[name] = drawn(weight, weight.shape, weight[0].numel(), *key)
        return self.drawn[name]


class DirectStage(ModuleStage):
    """Every layer has a graph of its own, and its output is sent B e; the network's last one e.

    The last module finds e, the gradient of the loss by what the last layer gives, in its forward,
    and hands it to all others.
    """

    def __init__(self, *settings: Any, **named: Any) -> None:
        super().__init__(*settings, **named)
        self.blocks, first = self.pipeline.all_blocks, self.module.first
        starts, self.tail = starts_of(self.blocks), tail_of(self.blocks)
        self.last, self.after = starts[-1], first + len(self.module.blocks)
        self.starts = [start for start in starts if first <= start < self.after]
        self.ends = [*self.starts[1:], min(self.after, self.tail)]  # the block behind each layer
        self.layer_inputs = {at: Inputs(self.blocks[at]) for at in self.ends if at < self.after}
        self.drawn: dict[int, Tensor] = {}

    def forward(self, payload: tuple[Any, Any] | None, batch: int, micro: int) -> Any:
        """Take (x, y), hand on (output, y); of the last module, [e]."""
        handed = super().forward(payload, batch, micro)
        if self.is_last:
            return [self.flights[batch, micro].error]
        outputs, rest = handed
        return outputs[-1], rest

    def _opened(self, x: Any) -> Any:
        return x  # nobody below is sent a gradient

    def _run(self, weights: Mapping[str, Tensor], x: Any, key: Key) -> list[Any]:
        """Return what each layer gives; in the last module, leaves of that, and the scores, too."""
        outputs = []

        def apart(number: int, x: Any) -> Any:
            if number not in self.ends:
                return x
            outputs.append(x)
            x = tree.detach(x)
            if number == self.tail:
                outputs.append(x := tree.map_tensors(leaf, x))
            return self.layer_inputs[number](x) if number in self.layer_inputs else x

        scores = apart(self.after, self.module(x, key, apart))
        return [*outputs, scores] if self.is_last else outputs

    def _loss(self, outputs: Any, flight: Flight, at: Place, *, again: bool = False) -> Any:
        *layers, leaves, scores = outputs
        told = learning(self.blocks, self.tail - 1, leaves, tree.batch_size(flight.x))
        loss = super()._loss(scores, flight, at)
        if not loss.requires_grad:
            raise ValueError(self._without_part())
        [flight.error] = torch.autograd.grad(loss, told)
        return layers

    def _above(self, flight: Flight, payload: Any) -> list[Tensor | None]:
        error: Tensor = payload[0] if flight.error is None else flight.error
        found: list[Tensor | None] = []
        for at, end, output in zip(self.starts, self.ends, flight.output, strict=True):
            own = learning(self.blocks, end - 1, output, len(error))
            sent = error if at == self.last else self._sent(at, own, error)
            others = filter(tree.differentiable, tree.tensors(output))
            found += [sent if each is own else None for each in others]
        return found

    def _sent(self, number: int, output: Tensor, error: Tensor) -> Tensor | None:
        """Return B e for the layer that begins with this block, unless it is frozen."""
        if not output.requires_grad:
            return None
        shape = error[0].numel(), *output.shape[1:]
        if number not in self.drawn:
            key = self.options.seed, "feedback", number
            self.drawn[number] = drawn(output, shape, output[0].numel(), *key)
        b = self.drawn[number]
        if b.shape != shape:
            raise ValueError(
                f"the layer of block {number} gives {tuple(shape[1:])} a sample, and gave"
                f" {tuple(b.shape[1:])} before: dfa has one B for it, so give samples of one size"
            )
        error = error.reshape(len(error), -1).to(b.dtype)
        return (error @ b.flatten(1)).view(output.shape) if output.dim() > 1 else error @ b


STAGES: dict[str, type[ModuleStage]] = {
    "exact": ModuleStage,
    "fixed": FeedbackStage,
    "sign": FeedbackStage,
    "direct": DirectStage,
}
