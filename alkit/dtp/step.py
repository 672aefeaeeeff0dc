"""One training step, the same in one process and on every rank.

    1  activations    all blocks, each on a detached input
    2  feedback       K_n iterations for each block's G_n: the costly part, shared out over ranks
    3  targets        from the output down, with the new feedback
    4  update         local gradients of all blocks, one optimiser step

On several ranks everyone does 1, 3 and 4 on the same batch; in 2 each its own blocks. Then the
ranks hold the same bits as one process, whoever ran what.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from alkit.dtp.crew import Crew
from alkit.dtp.direct import DirectFeedback
from alkit.dtp.feedback import BlockFeedback, NotFinite
from alkit.dtp.networks import Net
from alkit.dtp.settings import Settings
from alkit.dtp.targets import first, forward_gradients
from alkit.schedule.timeline import Interval

__all__ = ["Stepper"]

SHOWN = 4  # steps whose timeline is kept


class Stepper:
    """What a step needs: optimisers, who owns which loop, a clock.

    Attributes:
        owners: the rank of each loop, in the order of `feedback.loops`; set before the first step.
        feedback_losses: for each of this rank's blocks, (K_n,) a step.
        intervals: of the first steps of this process, on its own clock.
        seconds: by (kind, block), of all steps.
    """

    def __init__(self, net: Net, settings: Settings, crew: Crew, sample: Tensor) -> None:
        self.net, self.settings, self.crew = net, settings, crew
        self.feedback: BlockFeedback | None = None
        if settings.method == "ddtp":
            self.feedback = DirectFeedback(net, settings, sample)
        elif settings.method != "bp":
            self.feedback = BlockFeedback(net, settings)
        self.parameters = [p for block in net for p in block.forward_parameters()]
        self.optimizer = self._optimizer()
        self.owners: Sequence[int] = [0] * len(self.loops)
        self.feedback_losses: dict[int, list[Tensor]] = {n: [] for n in self.loops}
        self.intervals: list[Interval] = []
        self.seconds: dict[tuple[str, int], float] = {}
        self.zero_s = 0.0  # where this process' clock stood at the beginning
        self.steps = 0

    @property
    def loops(self) -> list[int]:
        """Numbers of the blocks that have a loop."""
        return self.feedback.loops if self.feedback else []

    def step(self, x: Tensor, y_onehot: Tensor, number: int, lr: float) -> Tensor:
        """Train on one batch; return its cross-entropy.

        Raises:
            NotFinite: of a loss.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        loss = self._backprop(x, y_onehot, number) if self.feedback is None else (
            self._targets(self.feedback, x, y_onehot, number)
        )  # fmt: skip
        if not torch.isfinite(loss):
            raise NotFinite(f"the loss is {loss.item()} at step {number}: lower lr ({lr:g})")
        with self._timed("update", len(self.net) - 1, number):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return loss

    def _backprop(self, x: Tensor, y_onehot: Tensor, number: int) -> Tensor:
        with self._timed("forward", 0, number):
            loss = cross_entropy(self.net(x), y_onehot)
        with self._timed("backward", 0, number):
            grads = torch.autograd.grad(loss, self.parameters)
        self._give(grads)
        return loss.detach()

    def _targets(self, feedback: BlockFeedback, x: Tensor, y_onehot: Tensor, number: int) -> Tensor:
        with self._timed("forward", 0, number):
            run = self.net.locally(x)
        self._learn(feedback, run, number)
        with self._timed("targets", len(self.net) - 1, number):
            last = first(run.s[-1], y_onehot, self.settings.beta)
            deltas = feedback.targets(run, last)
        with self._timed("backward", 0, number):
            self._give([g for own in forward_gradients(self.net, run, deltas) for g in own])
        return cross_entropy(run.s[-1].detach(), y_onehot)

    def _learn(self, feedback: BlockFeedback, run: object, number: int) -> None:
        """Run the own loops; all ranks go through all loops in one order."""
        for n, owner in zip(feedback.loops, self.owners, strict=True):
            if owner == self.crew.rank:
                with self._timed("feedback", n, number):
                    self.feedback_losses[n].append(feedback.learn(n, run, number))
            if feedback.iterations(n):
                self.crew.post(feedback.parameters(n), owner)
        if self.crew.ranks > 1:
            with self._timed("receive", 0, number):
                self.crew.wait()

    def _give(self, gradients: Sequence[Tensor]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient

    def _optimizer(self) -> torch.optim.Optimizer:
        own = self.settings
        if own.optimizer == "adam":
            return torch.optim.Adam(self.parameters, lr=own.lr, weight_decay=own.weight_decay)
        return torch.optim.SGD(
            self.parameters, lr=own.lr, momentum=own.momentum, weight_decay=own.weight_decay
        )

    @contextmanager
    def _timed(self, kind: str, block: int, number: int) -> Iterator[None]:
        start_s = time.perf_counter()
        yield
        end_s = time.perf_counter()
        key = kind, block
        self.seconds[key] = self.seconds.get(key, 0.0) + end_s - start_s
        if self.steps < SHOWN:
            times = start_s - self.zero_s, end_s - self.zero_s
            name = f"worker {self.crew.rank}"
            self.intervals.append(Interval(name, kind, block, number, 0, *times))
