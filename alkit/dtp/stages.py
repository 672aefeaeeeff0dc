"""A block under target propagation as a stage of the engine, on threads or on ranks.

forward    s = F(x), on a detached input            learn     K iterations of its feedback
target     take the own delta, hand down the next   backward  gradients of the local loss
update     a step of its own optimiser
"""

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from alkit.dtp.learning import BlockFeedback
from alkit.dtp.networks import Net
from alkit.dtp.targets import local_gradients, next_target, output_target
from alkit.engine.device import beside, place
from alkit.engine.losses import LossLog
from alkit.engine.optimizers import Factory, made
from alkit.engine.random import noise_of


class TargetStage:
    """Block `n` of a network; `learned` are the losses of the loop for each batch, a row (K,)."""

    def __init__(
        self, net: Net, n: int, feedback: BlockFeedback, factory: Factory, lr: float
    ) -> None:
        self.net, self.n, self.feedback = net, n, feedback
        self.block, self.is_last = net.blocks[n], n == len(net) - 1
        beside(net.loss, self.block)
        own = {id(each) for each in self.block.forward_parameters()}
        named = [pair for pair in net.named_parameters() if id(pair[1]) in own]
        self.optimizer = made(factory, named, lr=lr)
        pair = (f"forward.{n}", self.optimizer), (f"feedback.{n}", feedback.optimizers.get(n))
        self.optimizers = {name: each for name, each in pair if each is not None}
        self.learned = LossLog()

    def begin(self, losses: LossLog, step: int) -> None:
        """Begin an epoch."""
        self.losses, self.first, self.learned = losses, step, LossLog()

    @property
    def parts(self) -> list[Any]:
        """The parts that training changes."""
        own = [self.block, *self.optimizers.values(), self.learned]
        return [*own, self.losses] if self.is_last else own

    def forward(self, payload: Any, batch: int, micro: int) -> Any:
        """Take (x, y), hand on (s, y); the last block notes the loss."""
        x, self.y = place(payload, self.block)
        self.passed = self.block.locally(x)
        s = self.passed.s.detach()
        if not self.is_last:
            return s, self.y
        with self._noise(batch):
            self.losses.note(self.net.loss(s, self.y).view(1))
        return None

    def learn(self, payload: None, batch: int, micro: int) -> None:
        """Let the feedback learn."""
        self.learned.note(self.feedback.learn(self.n, self.passed, self.first + batch))

    def target(self, payload: Tensor | None, batch: int, micro: int) -> Tensor | None:
        """Take the delta of the block above, as it sent it down, and send the next delta."""
        if self.is_last:
            beta = self.feedback.settings.beta
            with self._noise(batch):
                payload = output_target(self.passed.s, self.y, beta, self.net.loss)
        assert payload is not None
        self.delta = place(payload, self.block)
        if not self.n:
            return None
        return next_target(self.block, self.passed, self.delta, self.feedback.rule)

    def backward(self, payload: None, batch: int, micro: int) -> None:
        """Compute the gradients of the local loss."""
        found = local_gradients(self.block, self.passed, self.delta)
        for parameter, gradient in zip(self.block.forward_parameters(), found, strict=True):
            parameter.grad = gradient

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step the forward weights."""
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def _noise(self, batch: int) -> AbstractContextManager[Any]:
        return noise_of(self.net.loss, self.feedback.seed, "loss", self.first + batch)
