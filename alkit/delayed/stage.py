"""The mathematics of one module: forward, backward and update, with the weights its method says.

    forward    with the newest weights, or an older version; keeps its graph, or its input only
    backward   through that graph, or through a forward that is run again now
    norm       where gradients are clipped: their norms, and those of the modules above
    update     after the backward of a batch's last micro-batch: one step of the newest weights

A stage knows nothing of its neighbours; orders and waits are the schedule's. Buffers (the running
statistics of BatchNorm) have no versions: forwards move them, a forward that is run again gets
copies.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from alkit.base import tree
from alkit.delayed.correction import State
from alkit.delayed.methods import Method
from alkit.delayed.modules import Pipeline
from alkit.delayed.options import Options
from alkit.delayed.weights import Versions, give
from alkit.engine.device import beside, device_of, place
from alkit.engine.random import entered, noise_of_loss
from alkit.engine.reduction import shares
from alkit.engine.stage import Gradients, Graph, Inputs, leaf
from alkit.engine.steps import LossLog, check_reached

Place = tuple[int, int]  # batch, micro-batch


@dataclass
class Flight:
    """What is kept between a (micro-)batch's forward and its backward."""

    x: Any
    y: Any
    at: Place
    version: int
    share: float | None  # of its loss in the batch's; None of a stand-in, see `_next`
    graph: Graph = field(init=False)  # of the last forward that was not a first run
    weights: dict[str, Tensor] = field(init=False)  # leaves of this graph
    above: Gradients | None = None  # gradients that came down to its output
    handed: Gradients = field(init=False)  # those that go on


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
        self.norms = torch.zeros(())  # of the gradients here and above
        self.loss = torch.zeros(())  # of the batch's micro-batches so far
        self.inputs = Inputs()
        if self.is_last:
            beside(pipeline.loss_fn, self.module)
        # whether forwards move buffers, and those that are run again
        self.moves = options.play_moves or not self.runs_again, options.replay_moves
        self.writes = True  # whether a module that runs again changed its last input in place
        chosen, delay = options.correction, self.stages - 1 - index
        self.correction = State() if chosen is None else chosen.of(delay, self.optimizer)
        self.applied = 0  # version of the weights that the last gradient was found at
        self.rest: list[tuple[Any, Any]] = []  # micro-batches of the batch that is being fed

    def forward(self, payload: tuple[Any, Any] | None, batch: int, micro: int) -> Any:
        """Take (x, y), hand on (output, y); the last module keeps the loss and hands on nothing."""
        x, (y, share) = self._next(payload, micro)
        x = tree.detach(place(x, self.module))
        y = place(y, self.module) if self.is_last else y
        version = self.method.version(batch, self.stages)
        version = self.versions.number if version is None else version
        flight = self.flights[batch, micro] = Flight(x, y, (batch, micro), version, share)
        self.forwarded = batch
        output = self._first_run(flight) if self.runs_again else self._graph(flight).output
        self.input_bytes = sum(t.numel() * t.element_size() for t in tree.tensors(x))
        self.peak_flights = max(self.peak_flights, len(self.flights))
        return None if self.is_last else (tree.detach(output), (y, share))

    def backward(self, payload: Gradients | None, batch: int, micro: int) -> Any:
        """Take the gradients of the output's tensors, hand on those of the input's."""
        flight = self._begun(payload, (batch, micro))
        weights = flight.weights.values()
        with self.correction.backward(self.versions.newest, batch - flight.version):
            found = flight.graph.gradients(flight.above, [*weights, *flight.graph.inputs])
        self.applied = flight.version
        # a list even if it is empty: the module below waits for a word
        flight.handed = found[len(weights) :]
        self._finish(flight, found[: len(weights)])
        return flight.handed

    def backward_input(self, payload: Gradients | None, batch: int, micro: int) -> Any:
        """Do the half of a backward that the module below waits for."""
        flight = self._begun(payload, (batch, micro))
        # each half walks down as far as its leaves
        flight.handed = flight.graph.gradients(flight.above, flight.graph.inputs, again=True)
        return flight.handed

    def backward_weight(self, payload: None, batch: int, micro: int) -> None:
        """Do the other half: the gradients of the weights."""
        flight = self.flights[batch, micro]
        found = flight.graph.gradients(flight.above, [*flight.weights.values()])
        self._finish(flight, found)

    def norm(self, payload: Tensor | None, batch: int, micro: int) -> Tensor:
        """Take the norms of all gradients above, hand on these and the own ones."""
        self._give(batch)
        given = [p.grad for p in self.versions.parameters.values() if p.grad is not None]
        own = [torch.linalg.vector_norm(each.double()).cpu() for each in given]
        self.norms = torch.stack([*own, *(() if payload is None else payload), torch.zeros(())])
        return self.norms

    def update(self, payload: Tensor | None, batch: int, micro: int) -> None:
        """Step with the gradients of `batch`, at that batch's learning rate.

        Args:
            payload: the norms of all gradients, where they are clipped.
        """
        if self.options.clip is None:
            self._give(batch)
        else:
            norms = self.norms if payload is None else payload
            share = (self.options.clip / (torch.linalg.vector_norm(norms) + 1e-6)).clamp(max=1.0)
            for parameter in self.versions.parameters.values():
                if parameter.grad is not None:
                    parameter.grad.mul_(share.to(parameter.grad))
        then = self.versions.held.get(self.applied, self.versions.newest)
        with self.correction.step(self.versions.parameters, then):
            self.versions.step(self.optimizer, self._needed(), self._factor(batch))

    def _give(self, batch: int) -> None:
        """Let the parameters have the gradients of a batch."""
        for name, parameter in self.versions.parameters.items():
            give(parameter, self.gradients.get(name))
        self.gradients = {}
        if not self.first_batch + batch:
            check_reached(self.module.blocks)

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

    def _first_run(self, flight: Flight) -> Any:
        """Run the module without a graph; its input stays as it is, for the run to come.

        The first batch, of which it gets a copy, shows whether it needs copies.
        """
        given = tree.map_tensors(torch.clone, flight.x) if self.writes else flight.x
        before = [tensor._version for tensor in tree.tensors(given)]
        with torch.no_grad():
            output = self._run(flight, self.versions.held[flight.version], given)
        wrote = before != [tensor._version for tensor in tree.tensors(given)]
        if wrote and not self.writes:
            raise RuntimeError(
                f"module {self.index} changes its input in place at batch {flight.at[0]} and not"
                f" before; {self.method.name} needs it again: let the first operator work out of"
                " place"
            )
        self.writes = wrote
        return output

    def _graph(self, flight: Flight, *, again: bool = False) -> Graph:
        """Run the module on new leaves, and keep what a backward needs."""
        x = tree.map_tensors(leaf, flight.x) if self.index else flight.x
        factors = map(self._factor, range(flight.version, flight.at[0]))
        leaves = self.versions.leaves(flight.version)
        leaves = self.correction.leaves(leaves, self.optimizer, factors)
        flight.weights = {name: own for name, own in leaves.items() if own.requires_grad}
        flight.graph = Graph(x, self._run(flight, leaves, self.inputs(x), again=again))
        return flight.graph

    def _run(
        self, flight: Flight, weights: dict[str, Tensor], x: Any, *, again: bool = False
    ) -> Any:
        """Run the module with these weights; its buffers move, or copies of them do."""
        buffers = dict(self.module.named_buffers())
        moves = self.moves[again] and flight.share is not None
        # its own buffers stay where they are: what a block assigns to them is kept
        given = {} if moves else {name: buffer.clone() for name, buffer in buffers.items()}
        buffers |= given
        noise = "again" if again and not self.options.replay_noise else "once"
        key = (self.options.seed, noise, self.first_batch + flight.at[0], flight.at[1])
        with self.options.recording(self.index, weights.values(), buffers.values()):
            with _with_weights(self.module, weights | given):
                output = self.module(x, key)
        return self._loss(output, flight, again=again) if self.is_last else output

    def _loss(self, scores: Any, flight: Flight, *, again: bool) -> Any:
        """Return the loss, which the last module's backward begins at."""
        batch, micro = flight.at
        if flight.share:
            key = self.options.seed, "loss", self.first_batch + batch, micro
            with noise_of_loss(self.pipeline.loss_fn, *key):
                loss = self.pipeline.loss_fn(scores, flight.y) * flight.share
        else:  # none of its targets counts: the mean of nothing is nan
            loss = torch.stack([0 * each.sum() for each in tree.tensors(scores)]).sum()
        if not again:
            self.loss = self.loss + loss.detach() if micro else loss.detach()
            if micro == self.micro - 1:
                self.losses.note(self.loss.view(1))
        return loss

    def _begun(self, payload: Gradients | None, at: Place) -> Flight:
        """Return what a backward begins with: the graph, and the gradients from above."""
        flight = self.flights[at]
        flight.above = place(payload, self.module)
        if self.runs_again:
            replays = self.method.backward == "replay"
            flight.version = self.versions.number if replays else flight.version
            self._graph(flight, again=True)
        if self.is_last and (flight.weights or flight.graph.inputs):
            if not flight.graph.roots(None)[0]:
                raise ValueError(
                    f"the loss depends on nothing that module {self.index} trains: take detach()"
                    " out"
                )
        return flight

    def _finish(self, flight: Flight, found: Gradients) -> None:
        """Add to the gradients; copy what shares memory, for an update may change it in place.

        One tensor may be the gradient of a weight and of the input (of x + p), or one number.
        """
        del self.flights[flight.at]
        others = [*flight.handed, *flight.weights.values()]
        taken = {t.untyped_storage().data_ptr() for t in others if t is not None}
        for name, gradient in zip(flight.weights, found, strict=True):
            if gradient is None:
                continue
            if gradient.layout is torch.strided:  # sparse ones are made anew
                memory = gradient.untyped_storage()
                if memory.data_ptr() in taken or memory.nbytes() < gradient.nbytes:
                    gradient = gradient.clone(memory_format=torch.contiguous_format)
                taken.add(memory.data_ptr())
            before = self.gradients.get(name)
            self.gradients[name] = gradient if before is None else before + gradient

    def _diverged(self, batch: int, column: int, value: float) -> FloatingPointError:
        return FloatingPointError(
            f"the loss is {value} at batch {self.first_batch + batch}: lower the learning rate, or"
            " take fewer modules"
        )

    def _factor(self, batch: int) -> float:
        """Return the factor of the rates at a batch's update."""
        number, rate = self.first_batch + batch, self.options.rate
        return (1.0 if rate is None else rate(number)) * self.correction.factor(number)

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
