"""The mathematics of one module: forward, backward and update, with the weights its method says.

    forward    with the newest weights, or an older version; keeps its graph, or its input only
    backward   through that graph, or through a forward that is run again now
    norm       where gradients are clipped: their norms, and those of the modules above
    update     after the backward of a batch's last micro-batch: one step of the newest weights

Buffers (the running statistics of BatchNorm) have no versions: a first forward moves them, and one
that is run again gets copies.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from alkit.base import tree
from alkit.delayed.methods import Method
from alkit.delayed.modules import Pipeline
from alkit.delayed.settings import Settings
from alkit.delayed.weights import Versions, give, with_weights
from alkit.engine.device import beside, place
from alkit.engine.losses import LossLog, shares
from alkit.engine.optimizers import check_reached
from alkit.engine.random import noise_of
from alkit.engine.stage import Gradients, Graph, Inputs, leaf

Place = tuple[int, int]  # batch, micro-batch
Weights = Mapping[str, Tensor]
Parameters = Mapping[str, nn.Parameter]
Optimizer = torch.optim.Optimizer | None
Leaves = dict[str, Tensor]
Surrounding = AbstractContextManager[None]


class Correction:
    """The correction of old gradients in a module: nothing, unless a subclass overrides it.

    `studies/delayed/corrections.py` has two. Batches are counted over all epochs.
    """

    def leaves(self, leaves: Leaves, optimizer: Optimizer, missed: range) -> Leaves:
        """Return the weights of a forward; `missed` are the batches whose updates it lacks."""
        return leaves

    def step(self, parameters: Parameters, then: Weights, batch: int) -> Surrounding:
        """Surround a step: may change the gradients, which were found at the weights `then`."""
        return nullcontext()


@dataclass
class Flight:
    """The state of a (micro-)batch between its forward and its backward."""

    x: Any
    y: Any
    at: Place
    version: int
    share: float | None  # of its loss in that of the batch; None of a stand-in, see `_next`
    graph: Graph = field(init=False)  # of the last forward that was not a first run
    weights: dict[str, Tensor] = field(init=False)  # leaves of this graph
    above: Gradients | None = None  # gradients that came down to its output
    handed: Gradients = field(init=False)  # those that go on


class Peaks(dict[str, int]):
    """The most flights at a time, and versions of weights right after an update."""

    state_dict, load_state_dict = dict.copy, dict.update

    def note(self, name: str, number: int) -> None:
        """See whether these are the most."""
        self[name] = max(self[name], number)


class ModuleStage:
    """Module `index` of a pipeline; the losses are of the last one, one a batch."""

    def __init__(
        self,
        pipeline: Pipeline,
        index: int,
        method: Method,
        settings: Settings,
        micro: int,
        *,
        seed: int = 0,
        several: bool = True,
    ) -> None:
        self.pipeline, self.index, self.method, self.settings = pipeline, index, method, settings
        self.micro, self.seed = micro, seed
        self.module, self.optimizer = pipeline[index], pipeline.optimizers[index]
        self.stages = len(pipeline)
        self.is_last = index == self.stages - 1
        # the backward of the last module follows its forward at once: there is nothing to run again
        again = method.runs_again and not self.is_last
        self.runs_again = again or (settings.recompute and several)
        self.versions = Versions(self.module, stash=method.backward != "inplace")
        self.first_batch = int(pipeline.batches_trained)
        self.flights: dict[Place, Flight] = {}
        self.peaks = Peaks(flights=0, versions=1)
        self.forwarded = -1
        self.gradients: dict[str, Tensor] = {}
        self.losses = LossLog()
        self.norms = torch.zeros(())  # of the gradients here and above
        self.loss = torch.zeros(())  # of the micro-batches of the batch so far
        self.inputs = Inputs()
        if self.is_last:
            beside(pipeline.loss_fn, self.module)
        made, delay = settings.correction or (lambda *_: Correction()), self.stages - 1 - index
        self.correction: Correction = made(method.name, delay, self.optimizer)
        self.applied = 0  # version of the weights that the last gradient was found at
        self.rest: list[tuple[Any, Any]] = []  # micro-batches of the batch that is being fed
        own = [self.module, self.optimizer, self.losses, self.peaks]
        self.parts: list[Any] = [each for each in own if each is not None]

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
        self.peaks.note("flights", len(self.flights))
        return None if self.is_last else (tree.detach(output), (y, share))

    def backward(self, payload: Gradients | None, batch: int, micro: int) -> Any:
        """Take the gradients of the output tensors, hand on those of the input tensors."""
        flight = self._begun(payload, (batch, micro))
        weights = flight.weights.values()
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
        """Step; where gradients are clipped, `payload` are the norms of all of them."""
        if self.settings.clip is None:
            self._give(batch)
        else:
            norms = self.norms if payload is None else payload
            share = (self.settings.clip / (torch.linalg.vector_norm(norms) + 1e-6)).clamp(max=1.0)
            for parameter in self.versions.parameters.values():
                if parameter.grad is not None:
                    parameter.grad.mul_(share.to(parameter.grad))
        then = self.versions.held.get(self.applied, self.versions.newest)
        with self.correction.step(self.versions.parameters, then, self.first_batch + batch):
            self.versions.step(self.optimizer, self._needed())
        self.peaks.note("versions", len(self.versions.held))

    def _give(self, batch: int) -> None:
        for name, parameter in self.versions.parameters.items():
            give(parameter, self.gradients.get(name))
        self.gradients = {}
        if not self.first_batch + batch:
            check_reached(self.module.blocks)

    def _next(self, payload: Any, micro: int) -> tuple[Any, Any]:
        """Return the micro-batch: the first module gets whole batches and cuts them itself."""
        if self.index:
            return payload
        if micro == 0:
            count = min(self.micro, tree.batch_size(payload))
            parts = list(tree.micro_batches(payload, count))
            weigh = shares(self.pipeline.loss_fn, [y for _, y in parts])
            self.rest = [(x, (y, own)) for (x, y), own in zip(parts, weigh, strict=True)]
            x, y = parts[-1]  # stands in where samples are too few, and counts for nothing
            self.rest += [(x, (y, None))] * (self.micro - count)
        return self.rest.pop(0)

    def _first_run(self, flight: Flight) -> Any:
        """Run the module without a graph; its input stays as it is, for the run to come."""
        before = [tensor._version for tensor in tree.tensors(flight.x)]
        weights = self.versions.held[flight.version]
        with torch.no_grad():
            output = self._run(flight, weights, self.inputs(flight.x))
        if before != [tensor._version for tensor in tree.tensors(flight.x)]:
            raise RuntimeError(
                f"module {self.index} changes its input in place at batch {flight.at[0]} and not"
                f" before; {self.method.name} needs it again: let the first operator work out of"
                " place"
            )
        return output

    def _graph(self, flight: Flight, *, again: bool = False) -> Graph:
        """Run the module on new leaves, and keep all that a backward needs."""
        x = tree.map_tensors(leaf, flight.x) if self.index else flight.x
        first, leaves = self.first_batch, self.versions.leaves(flight.version)
        missed = range(first + flight.version, first + flight.at[0])
        leaves = self.correction.leaves(leaves, self.optimizer, missed)
        flight.weights = {name: own for name, own in leaves.items() if own.requires_grad}
        flight.graph = Graph(x, self._run(flight, leaves, self.inputs(x), again=again))
        return flight.graph

    def _run(
        self, flight: Flight, weights: dict[str, Tensor], x: Any, *, again: bool = False
    ) -> Any:
        """Run the module with these weights; its buffers move, or copies of them do."""
        # buffers that move stay where they are: values that a block assigns to them are kept
        moves = not again and flight.share is not None
        buffers = {} if moves else {n: b.clone() for n, b in self.module.named_buffers()}
        noise = "again" if again and not self.settings.replay_noise else "once"
        key = (self.seed, noise, self.first_batch + flight.at[0], flight.at[1])
        with with_weights(self.module, weights | buffers):
            output = self.module(x, key)
        return self._loss(output, flight, again=again) if self.is_last else output

    def _loss(self, scores: Any, flight: Flight, *, again: bool) -> Any:
        """Return the loss: the backward of the last module begins there."""
        (batch, micro), loss_fn = flight.at, self.pipeline.loss_fn
        if flight.share:
            with noise_of(loss_fn, self.seed, "loss", self.first_batch + batch, micro):
                loss = loss_fn(scores, flight.y) * flight.share
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
        learns = self.is_last and (flight.weights or flight.graph.inputs)
        if learns and not flight.graph.roots(None)[0]:
            raise ValueError(
                f"the loss depends on nothing that module {self.index} trains: take detach() out"
            )
        return flight

    def _finish(self, flight: Flight, found: Gradients) -> None:
        """Add to the gradients; copy shared memory, because an update may change it in place.

        One tensor may be the gradient of a weight and of the input, as of x + p.
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

    def _needed(self) -> set[int]:
        """Return the versions that batches in flight, or to come, will ask for."""
        flying = () if self.method.backward == "replay" else self.flights.values()
        needed = {flight.version for flight in flying}
        following = self.method.version(self.forwarded + 1, self.stages)
        if following is not None:
            needed |= set(range(following, self.versions.number + 1))
        return needed
