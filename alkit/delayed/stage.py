"""The mathematics of one module: forward, backward and update, with the weights its method says.

    forward    with the newest weights, or an older version; keeps its graph, or its input only
    backward   through that graph, or through a forward that is run again now
    update     after the backward of a batch's last micro-batch: one step of the newest weights

A stage knows nothing of its neighbours; orders and waits are the schedule's. Buffers (the running
statistics of BatchNorm) have no versions: forwards move them, a forward that is run again gets
copies.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from alkit.data import tree
from alkit.delayed.correction import State
from alkit.delayed.methods import Method
from alkit.delayed.modules import Pipeline
from alkit.delayed.options import Options
from alkit.delayed.weights import Versions, give
from alkit.engine.device import beside, device_of, place
from alkit.engine.loss_log import LossLog
from alkit.engine.random import noise_of_loss
from alkit.engine.recomputed import entered
from alkit.engine.reduction import mean_of_replicas, shares
from alkit.engine.stage import Inputs
from alkit.engine.steps import check_reached

Place = tuple[int, int]  # batch, micro-batch
Key = tuple[int | str, ...]  # of noise


@dataclass
class Flight:
    """What is kept between a (micro-)batch's forward and its backward."""

    x: Any
    y: Any
    version: int
    share: float | None = 1.0  # of its loss in the batch's; None of a stand-in, see `_next`
    output: Any = None  # with its graph, unless the forward is run again
    leaves: dict[str, Tensor] = field(default_factory=dict)
    rest: Callable[[], Sequence[Tensor | None]] | None = None  # the half backward that is left


class Ends(NamedTuple):
    """Where a backward begins, with the gradients there, and leaves that it may find."""

    outputs: list[Tensor]
    above: list[Tensor]
    weights: list[Tensor]
    inputs: list[Tensor]

    def gradients(self, *leaves: Tensor, keep: bool = False) -> list[Tensor | None]:
        """Return the gradients of leaves, None where nothing leads to one.

        Args:
            keep: the graph is needed again: a half backward walks down as far as its leaves, and
                the other half walks there once more.
        """
        if not leaves or not self.outputs:  # a detach may leave no outputs
            return [None] * len(leaves)
        options = {"allow_unused": True, "retain_graph": keep}
        return list(torch.autograd.grad(self.outputs, leaves, self.above, **options))


class ModuleStage:
    """Module `index` of a pipeline.

    Attributes:
        losses: of the last module, one a batch.
        flights: what is in flight, by (batch, micro-batch).
        peak_flights: the most at a time.
        input_bytes: of one (micro-)batch's input.
        versions: of the weights.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        index: int,
        method: Method,
        options: Options,
        micro: int,
        *,
        several: bool = True,
    ) -> None:
        self.pipeline, self.index, self.method, self.options = pipeline, index, method, options
        self.micro = micro
        self.module, self.optimizer = pipeline[index], pipeline.optimizers[index]
        self.device = device_of(self.module)
        self.stages = len(pipeline)
        self.is_last = index == self.stages - 1
        # the last module's backward follows its forward at once: there is nothing to run again
        again = method.backward in ("replay", "recompute") and not self.is_last
        self.runs_again = again or (options.recompute and several)
        self.versions = Versions(self.module, stash=method.backward != "inplace")
        self.first_batch = int(pipeline.batches_trained)
        self.flights: dict[Place, Flight] = {}
        self.peak_flights = self.input_bytes = 0
        self.forwarded = -1
        self.gradients: dict[str, Tensor] = {}
        self.losses = LossLog(self._diverged if options.check_finite else None)
        self.loss = torch.zeros(())  # of the batch's micro-batches so far
        self.inputs = Inputs(self.module)
        if self.is_last:
            beside(pipeline.loss_fn, self.module)
        self.writes = True  # whether a module that runs again changed its last input in place
        self.reduce: Callable[[Tensor], Tensor] | None = None  # over replicas, see share.py
        chosen, delay = options.correction, self.stages - 1 - index
        self.correction = None if chosen is None else chosen.of(delay, self.optimizer)
        self.applied = 0  # version of the weights that the last gradient was found at
        self.rest: list[tuple[Any, Any]] = []  # micro-batches of the batch that is being fed

    def forward(self, payload: tuple[Any, Any] | None, batch: int, micro: int) -> Any:
        """Take (x, y), hand on (output, y); the last module keeps the loss and hands on nothing."""
        x, (y, share) = self._next(payload, micro)
        x = place(x, self.module)
        y = place(y, self.module) if self.is_last else y
        version = self.method.version(batch, self.stages)
        version = self.versions.number if version is None else version
        flight = Flight(tree.detach(x), y, version, share)
        self.forwarded = batch
        if self.runs_again:
            output = self._first_run(flight, (batch, micro))
            if self.is_last:
                self._loss(output, flight, (batch, micro))
        else:
            output = self._graph(flight, (batch, micro), moves=True)
        self.flights[batch, micro] = flight
        self.input_bytes = sum(t.numel() * t.element_size() for t in tree.tensors(flight.x))
        self.peak_flights = max(self.peak_flights, len(self.flights))
        return None if self.is_last else (tree.detach(output), (y, share))

    def backward(self, payload: list[Tensor | None] | None, batch: int, micro: int) -> Any:
        """Take the gradients of the output's tensors, hand on those of the input's."""
        flight = self.flights.pop((batch, micro))
        ends = self._ends(flight, payload, (batch, micro))
        correction, now = self.correction, self.versions.plain()
        late = batch - flight.version
        with correction.backward(now, late) if correction else nullcontext():
            found = ends.gradients(*ends.weights, *ends.inputs)
        self.applied = flight.version
        return self._taken(flight, found)

    def backward_input(self, payload: list[Tensor | None] | None, batch: int, micro: int) -> Any:
        """Do the half of a backward that the module below waits for."""
        flight = self.flights[batch, micro]
        ends = self._ends(flight, payload, (batch, micro))
        handed = ends.gradients(*ends.inputs, keep=True)
        flight.output, flight.rest = None, lambda: [*ends.gradients(*ends.weights), *handed]
        return handed

    def backward_weight(self, payload: None, batch: int, micro: int) -> None:
        """Do the other half: the gradients of the weights."""
        flight = self.flights.pop((batch, micro))
        assert flight.rest is not None  # of the first half
        self._taken(flight, flight.rest())

    def _ends(self, flight: Flight, payload: Any, at: Place) -> Ends:
        payload = place(payload, self.module)
        if self.runs_again:
            flight.version = -1 if self.method.backward == "replay" else flight.version
            self._graph(flight, at, moves=self.options.replay_moves, again=True)
        roots = [t for t in tree.tensors(flight.output) if tree.differentiable(t)]
        above = [torch.ones_like(flight.output)] if self.is_last else payload
        # a frozen module's output, and what the next module leaves alone, have no part in it
        pairs = [
            (root, gradient)
            for root, gradient in zip(roots, above, strict=True)
            if root.requires_grad and gradient is not None
        ]
        inputs = [t for t in tree.tensors(flight.x) if t.requires_grad]
        weights = [leaf for leaf in flight.leaves.values() if leaf.requires_grad]
        if (weights or inputs) and not pairs and self.is_last:
            raise ValueError(
                f"the loss depends on nothing that module {self.index} trains: take detach() out"
            )
        return Ends([root for root, _ in pairs], [own for _, own in pairs], weights, inputs)

    def _taken(self, flight: Flight, found: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Take the weights' gradients, and return those of the inputs.

        A list even if it is empty: the module below waits for a word.
        """
        weights = {n: leaf for n, leaf in flight.leaves.items() if leaf.requires_grad}
        handed = list(found[len(weights) :])
        self._accumulate(dict(zip(weights, found, strict=False)), [*handed, *weights.values()])
        return handed

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step with the gradients of `batch`, at that batch's learning rate."""
        if self.reduce is not None:
            self._reduce_gradients(self.reduce)
        for name, parameter in self.versions.parameters.items():
            give(parameter, self.gradients.get(name))
        self.gradients = {}
        if not self.first_batch + batch:
            check_reached(self.module.blocks)
        if self.optimizer is not None:
            if self.correction is not None:
                self._correct(self.correction)
            self._clip()
        before = {n: own.clone() for n, own in self._newest().items()}
        self.versions.step(self.optimizer, self._needed(), self._factor(self.first_batch + batch))
        if self.correction is not None:
            self.correction.stepped(before, self._newest())

    def _newest(self) -> dict[str, Tensor]:
        """Return the weights, if there is a correction to look at them."""
        return {} if self.correction is None else self.versions.plain()

    @torch.no_grad()
    def _correct(self, correction: State) -> None:
        now = self.versions.plain()
        then = self.versions.held.get(self.applied, now)  # kept by the methods that it is for
        for name, parameter in self.versions.parameters.items():
            if parameter.grad is not None:
                parameter.grad = correction.gradient(name, parameter.grad, now[name], then[name])

    def _next(self, payload: Any, micro: int) -> tuple[Any, Any]:
        """Return the micro-batch: the first module gets whole batches and cuts them itself.

        A batch of fewer samples than micro-batches has stand-ins, which count for nothing.
        """
        if self.index:
            return payload
        if micro == 0:
            count = min(self.micro, tree.batch_size(payload))
            parts = list(tree.micro_batches(payload, count))
            weigh = shares(self.pipeline.loss_fn, [y for _, y in parts])
            self.rest = [(x, (y, own)) for (x, y), own in zip(parts, weigh, strict=True)]
            x, y = parts[-1]
            self.rest += [(x, (y, None))] * (self.micro - count)
        return self.rest.pop(0)

    def _first_run(self, flight: Flight, at: Place) -> Any:
        """Run the module without a graph; its input stays as it is, for the run to come.

        The first batch, of which it gets a copy, shows whether it needs copies.
        """
        given = tree.map_tensors(torch.clone, flight.x) if self.writes else flight.x
        before = [tensor._version for tensor in tree.tensors(given)]
        with torch.no_grad():
            weights = self.versions.plain(flight.version)
            moves = self.options.play_moves and flight.share is not None
            output = self._call(weights, given, at, moves=moves)
        wrote = before != [tensor._version for tensor in tree.tensors(given)]
        if wrote and not self.writes:
            raise RuntimeError(
                f"module {self.index} changes its input in place at batch {at[0]} and not before;"
                f" {self.method.name} needs it again: let the first operator work out of place"
            )
        self.writes = wrote
        return output

    def _graph(self, flight: Flight, at: Place, *, moves: bool, again: bool = False) -> Any:
        """Run the module on new leaves, and keep what a backward needs."""
        flight.x = tree.map_tensors(leaf, flight.x) if self.index else flight.x
        version = None if flight.version < 0 else flight.version
        flight.leaves = self.versions.leaves(version)
        if self.correction is not None:
            rates = self._rates(self.first_batch + late for late in range(flight.version, at[0]))
            flight.leaves = self.correction.leaves(flight.leaves, self.optimizer, rates)
        x = self.inputs(flight.x)
        moves = moves and flight.share is not None
        output = self._call(flight.leaves, x, at, moves=moves, again=again)
        if self.is_last:
            output = self._loss(output, flight, at, again=again)
        flight.output = output
        return output

    def _loss(self, scores: Any, flight: Flight, at: Place, *, again: bool = False) -> Any:
        """Return the loss, which the last module's backward begins at."""
        batch, micro = at
        if flight.share:
            key = self.options.seed, "loss", self.first_batch + batch, micro
            with noise_of_loss(self.pipeline.loss_fn, *key):
                loss = self.pipeline.loss_fn(scores, flight.y) * flight.share
        else:  # none of its targets counts: a mean of nothing is no number
            loss = torch.stack([0 * each.sum() for each in tree.tensors(scores)]).sum()
        if not again:
            self._note(loss.detach(), micro)
        return loss

    def _call(
        self, weights: dict[str, Tensor], x: Any, at: Place, *, moves: bool, again: bool = False
    ) -> Any:
        """Run the module with these weights; its buffers move, or copies of them do."""
        buffers = dict(self.module.named_buffers())
        # its own buffers stay where they are: what a block assigns to them is kept
        given = {} if moves else {name: buffer.clone() for name, buffer in buffers.items()}
        buffers |= given
        noise = "again" if again and not self.options.replay_noise else "once"
        key = (self.options.seed, noise, self.first_batch + at[0], at[1])
        with self.options.recording(self.index, weights.values(), buffers.values()):
            with _with_weights(self.module, weights | given):
                output = self.module(x, key)
        return output

    def _accumulate(self, found: dict[str, Tensor | None], others: list[Tensor | None]) -> None:
        """Add to the gradients; copy what shares memory, for an update may change it in place.

        One tensor may be the gradient of a weight and of the input (of x + p), or one number.
        """
        taken = {t.untyped_storage().data_ptr() for t in others if t is not None}
        for name, gradient in found.items():
            if gradient is None:
                continue
            if gradient.layout is torch.strided:  # sparse ones are made anew
                memory = gradient.untyped_storage()
                if memory.data_ptr() in taken or memory.nbytes() < gradient.nbytes:
                    gradient = gradient.clone(memory_format=torch.contiguous_format)
                taken.add(memory.data_ptr())
            before = self.gradients.get(name)
            self.gradients[name] = gradient if before is None else before + gradient

    def _reduce_gradients(self, reduce: Callable[[Tensor], Tensor]) -> None:
        own = {name: p for name, p in self.versions.parameters.items() if p.requires_grad}
        given = [self.gradients.get(name) for name in own]
        found = zip(own, mean_of_replicas(given, [*own.values()], reduce), strict=True)
        self.gradients = {name: mean for name, mean in found if mean is not None}

    def _note(self, loss: Tensor, micro: int) -> None:
        self.loss = self.loss + loss if micro else loss
        if micro == self.micro - 1:
            self.losses.note(self.loss.view(1))

    def _diverged(self, batch: int, column: int, value: float) -> FloatingPointError:
        return FloatingPointError(
            f"the loss is {value} at batch {self.first_batch + batch}: lower the learning rate, or"
            " take fewer modules"
        )

    def _factor(self, batch: int) -> float:
        rate, corrected = self.options.rate, self.correction
        own = 1.0 if rate is None else rate(batch)
        return own if corrected is None else own * corrected.factor(batch)

    def _rates(self, batches: Iterable[int]) -> list[float]:
        """Return the sum of the rates of these batches' updates, for each group."""
        factor = sum(map(self._factor, batches))
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        return [group["lr"] * factor for group in groups]

    def _clip(self) -> None:
        """Clip each tensor by its own norm: a norm over all modules would have to be waited for."""
        if self.options.clip is not None:
            for parameter in self.versions.parameters.values():
                if parameter.grad is not None:
                    torch.nn.utils.clip_grad_norm_(parameter, self.options.clip)

    def _needed(self) -> set[int]:
        """Return the versions that batches in flight, or to come, will ask for."""
        needed = set()
        if self.method.backward != "replay":
            needed = {flight.version for flight in self.flights.values()}
        following = self.method.version(self.forwarded + 1, self.stages)
        if following is not None:
            needed |= set(range(following, self.versions.number + 1))
        return needed


@contextmanager
def _with_weights(module: nn.Module, weights: dict[str, Tensor]) -> Iterator[None]:
    """Let a module have these tensors, and again for what a backward recomputes.

    A tensor of several names is given back, unlike by `torch.func.functional_call`.
    """
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    given = {id(named[name]): tensor for name, tensor in weights.items()}
    held: list[tuple[Any, str, Tensor]] = [
        (own, name, tensor)
        for part in module.modules()
        for own in (part._parameters, part._buffers)
        for name, tensor in own.items()
        if tensor is not None and id(tensor) in given
    ]
    for own, name, tensor in held:
        own[name] = given[id(tensor)]
    try:
        with entered(lambda: partial(_with_weights, module, weights)):
            yield
    finally:
        for own, name, tensor in held:
            own[name] = tensor


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tree.differentiable(tensor))
