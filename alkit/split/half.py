"""Head and tail: neighbouring units with an optimiser of their own, as stages of the engine.

    forward    of a micro-batch (x, y, share): the head hands on the same, the tail has the loss
    send       hands the payload for the other side on as it is
    backward   adds gradients of the mean loss of the batch; the tail sends one down
    update     steps with the sum of gradients, whatever the sizes of micro-batches

Labels travel with the activations, because the server has no samples. A batch that is too small for
all micro-batches of the schedule leaves the last ones empty.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.base.arguments import given
from alkit.engine.device import place
from alkit.engine.optimizers import check_reached, check_untied, made
from alkit.engine.random import noise_of
from alkit.engine.stage import Graph, Inputs, leaf

SGD = partial(torch.optim.SGD, momentum=0.9)  # of the experiments
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Half:
    """Consecutive units of a network.

    Args:
        units: the half trains them in place.
        first: number of the first of them in the network, which seeds their randomness.
        stage: 0 takes batches, 1 the output of stage 0.
        is_last: it has the end of the network, and the loss; and of the batches since `begin` mean
            `losses`, and how many samples were `right`.
        device: number of the device whose data passes through.
    """

    def __init__(
        self,
        units: Sequence[nn.Module],
        optimizer: Optimizer,
        *,
        first: int = 0,
        stage: int = 0,
        is_last: bool = False,
        seed: int = 0,
        device: int = 0,
    ) -> None:
        self.units = nn.ModuleDict({str(at): unit for at, unit in enumerate(units, first)})
        self.first, self.stage, self.is_last = first, stage, is_last
        self.seed, self.number = seed, device
        self.returns = stage == 1 and first > 0
        self.optimizer = made(optimizer, self.units.named_parameters())
        self.inputs = Inputs()
        held, buffers = self.units.state_dict(), self.units.named_buffers()
        self.loose = {name: own.clone() for name, own in buffers if name not in held}
        self.parts: Sequence[Any] = ()  # micro-batches of the open batch
        self.graphs: dict[tuple[int, int], Graph] = {}
        self.begin(0)

    def begin(self, step: int) -> None:
        """Begin a row of batches with this step."""
        self.step, self.losses, self.right = step, list[float](), 0

    def forward(self, payload: Any, batch: int, micro: int) -> tuple[Tensor, Tensor, float] | None:
        """Take a micro-batch (x, y, share of the batch), at stage 0 with the first one all."""
        if self.stage == 0:
            self.parts = payload if micro == 0 else self.parts
            payload = self.parts[micro] if micro < len(self.parts) else None
        if payload is None:
            return None
        x, y, share = place(payload, self.units)
        x = leaf(x, self.returns)
        out, step = self.inputs(x), self.step + batch
        for at, unit in self.units.items():
            with noise_of(unit, self.seed, "unit", int(at), self.number, step, micro):
                out = unit(out)
        if not self.is_last:
            self.graphs[batch, micro] = Graph(x, out)
            return out.detach().cpu(), y.cpu(), share
        loss = F.cross_entropy(out, y) * share
        self.graphs[batch, micro] = Graph(x, loss)
        self.right += int((out.detach().argmax(1) == y).sum())
        self.losses += [0.0] * (batch + 1 - len(self.losses))
        self.losses[batch] += float(loss.detach())
        return None

    def send(self, payload: Any, batch: int, micro: int) -> Any:
        """Hand on the output of this half."""
        return payload

    def backward(self, payload: Tensor | None, batch: int, micro: int) -> Tensor | None:
        """Take the gradient of the output; return the gradient of the input, if any."""
        if (graph := self.graphs.pop((batch, micro), None)) is None:
            return None
        above = [] if payload is None else [place(payload, self.units)]
        found = graph.backward(None if self.is_last else above)
        return found[0].cpu() if self.returns and found and found[0] is not None else None

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step with the sum of gradients."""
        step = self.step + batch
        if step == 0:
            check_reached(self.units.values(), self.first)
        for name, before in self.loose.items():
            if not torch.equal(self.units.get_buffer(name), before):
                at, _, own = name.partition(".")
                said = f"unit {at} changes its buffer {own} in training, and its state has it not"
                raise ValueError(f"{said}, so nobody averages it: register it with persistent=True")
        self.graphs.clear()  # of an empty head
        if self.optimizer is not None:
            self.optimizer.step()
        self.units.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Return a copy of weights and buffers, by the names that the whole network gives them."""
        return state_of(self.units)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the part of this half from the state of a network; the optimiser keeps its own."""
        self.units.load_state_dict({name: state[name] for name in self.units.state_dict()})


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of weights and buffers on the host; of a row they begin with unit numbers."""
    return {name: own.detach().to("cpu", copy=True) for name, own in model.state_dict().items()}


def check_units(units: Sequence[nn.Module], cuts: Iterable[int]) -> None:
    """Refuse units with a state that can't be averaged, or with a parameter on both sides."""
    for at, unit in enumerate(units):
        for name, own in unit.state_dict().items():
            if not isinstance(own, Tensor) or own.is_complex():
                said = f"unit {at} keeps {name}, {given(own)}, and what devices have is averaged"
                raise ValueError(f"{said}: keep real tensors alone, as parameters or buffers")
    for cut in set(cuts):
        check_untied("side", (nn.ModuleList(units[:cut]), nn.ModuleList(units[cut:])))
