"""The methods once more, without a pipeline: loops over batches that say what is meant.

    composite  batch m: put the network together from module k's weights after v(k, m) updates, one
               ordinary backward, give module k its part of the gradient
    replay     batch m: forward from module to module with those weights; then from the last module
               to the first run it again, from its stored input, with its newest weights, and
               back-propagate what came from above

    v(k, m) = max(0, m - (K - 1 - k)), m from 0;  with one version for all: max(0, m - (K - 1))

Slow, plain and independent of the stages: a copy of each module is loaded with the weights of the
moment, and all versions are kept. The pipelines must end in the same bits. Seeing all modules at
once, the recursion can also compare each update with true backprop, see `watch`.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from alkit.base import tree
from alkit.delayed.methods import Method, method_named
from alkit.delayed.modules import Pipeline, Span

Gradients = list[list[Tensor | None]]  # by module, then by parameter
Watch = Callable[[int, Gradients, Gradients], None]  # batch, the method's, true backprop's
State = dict[str, Tensor]


def recursion(
    pipeline: Pipeline,
    batches: Iterable[tuple[Any, Any]],
    method: str,
    *,
    seed: int = 0,
    watch: Watch | None = None,
) -> Tensor:
    """Train the modules in place on every batch; return the losses, float or double (batches,).

    Args:
        method: one without micro-batches and without `inplace`.
        seed: as of `train_epoch`.
        watch: called for every batch with the gradients that the method applies and those of true
            backprop at the newest weights of all modules.
    """
    chosen = method_named(method)
    if chosen.accumulates or chosen.backward == "inplace":
        raise ValueError(f"{method} has no recursion here: give seq, ddg, fr, pipedream, ...")
    run = _Recursion(pipeline, chosen, seed)
    losses = []
    for batch, (x, y) in enumerate(batches):
        # a copy: what works in place on it would spoil the batch for the true gradients
        loss, gradients = run.step(batch, tree.map_tensors(torch.clone, x), y)
        if watch is not None:
            watch(batch, gradients, run.true(batch, x, y))
        run.apply(gradients)
        losses.append(loss)
    return torch.stack(losses).to(torch.promote_types(losses[0].dtype, torch.float32))


class _Recursion:
    """Live modules, a shadow of each that is loaded with older weights, and all versions."""

    def __init__(self, pipeline: Pipeline, method: Method, seed: int) -> None:
        self.pipeline, self.method, self.seed = pipeline, method, seed
        self.first_batch = int(pipeline.batches_trained)
        self.shadows = [copy.deepcopy(module) for module in pipeline]
        for live, shadow in zip(pipeline, self.shadows, strict=True):
            _share_buffers(live, shadow)
        self.history: list[list[State]] = [[_weights(module)] for module in pipeline]

    def version(self, k: int, batch: int) -> int:
        """Return the updates that module k's weights have seen in the forward of a batch."""
        if self.method.order == "seq":
            return batch
        last = len(self.pipeline) - 1
        own = self.method.version(batch, last + 1)
        return max(0, batch - (last - k)) if own is None else own

    def step(self, batch: int, x: Any, y: Any) -> tuple[Tensor, Gradients]:
        """Return the loss, and by module the gradients that the method applies."""
        versions = [self.version(k, batch) for k in range(len(self.shadows))]
        if self.method.backward == "replay":
            return self._replay(batch, x, y, versions)
        return self._composite(batch, x, y, versions)

    def true(self, batch: int, x: Any, y: Any) -> Gradients:
        """Return the gradients of backprop at the newest weights; buffers stay."""
        before = [{n: b.clone() for n, b in m.named_buffers()} for m in self.shadows]
        _, gradients = self._composite(batch, x, y, [batch] * len(self.shadows))
        for module, kept in zip(self.shadows, before, strict=True):
            for name, buffer in module.named_buffers():
                buffer.copy_(kept[name])
        return gradients

    def apply(self, gradients: Gradients) -> None:
        """Let every optimiser step, and keep the new versions."""
        for k, module in enumerate(self.pipeline):
            optimizer = self.pipeline.optimizers[k]
            for parameter, gradient in zip(module.parameters(), gradients[k], strict=True):
                parameter.grad = gradient
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            self.history[k].append(_weights(module))

    def _composite(
        self, batch: int, x: Any, y: Any, versions: list[int]
    ) -> tuple[Tensor, Gradients]:
        for k, shadow in enumerate(self.shadows):
            _load(shadow, self.history[k][versions[k]])
        for shadow in self.shadows:
            x = shadow(x, self._key(batch))
        loss = self.pipeline.loss_fn(x, y)
        loss.backward()
        return loss.detach(), [_gradients(shadow) for shadow in self.shadows]

    def _replay(self, batch: int, x: Any, y: Any, versions: list[int]) -> tuple[Tensor, Gradients]:
        key, last = self._key(batch), len(self.shadows) - 1
        inputs = []
        for k, shadow in enumerate(self.shadows[:-1]):
            _load(shadow, self.history[k][versions[k]])
            inputs.append(tree.map_tensors(_leaf if k else torch.clone, x))
            with torch.no_grad():
                x = shadow(x, key)
        inputs.append(tree.map_tensors(_leaf, x) if last else x)
        _load(self.shadows[last], self.history[last][versions[last]])
        loss = self.pipeline.loss_fn(self.shadows[last](inputs[last], key), y)
        loss.backward()
        gradients = [_gradients(self.shadows[last])]
        for k in reversed(range(last)):
            again = copy.deepcopy(self.shadows[k])  # with buffers of its own: a replay moves none
            _load(again, self.history[k][batch])
            roots = [t for t in tree.tensors(again(inputs[k], key)) if t.requires_grad]
            above = [t.grad for t in tree.tensors(inputs[k + 1]) if t.requires_grad and roots]
            pairs = [pair for pair in zip(roots, above, strict=True) if pair[1] is not None]
            if pairs:
                torch.autograd.backward([root for root, _ in pairs], [own for _, own in pairs])
            gradients.append(_gradients(again))
        return loss.detach(), gradients[::-1]

    def _key(self, batch: int) -> tuple[int | str, ...]:
        return self.seed, "once", self.first_batch + batch, 0


def _weights(module: Span) -> State:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


@torch.no_grad()
def _load(module: Span, weights: State) -> None:
    for name, parameter in module.named_parameters():
        parameter.copy_(weights[name])
        parameter.grad = None


def _gradients(module: Span) -> list[Tensor | None]:
    return [parameter.grad for parameter in module.parameters()]


def _share_buffers(live: Span, shadow: Span) -> None:
    for path, buffer in live.named_buffers():
        owner, _, leaf = path.rpartition(".")
        shadow.get_submodule(owner)._buffers[leaf] = buffer


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.is_floating_point())
