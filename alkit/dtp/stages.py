"""A block under target propagation as a stage: what the engine runs, on threads or on ranks.

forward    s = F(x), on a detached input            learn     K iterations of the block's feedback
target     take the own delta, hand down the next   backward  gradients of the local loss
update     a step of the block's own optimiser
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from alkit.dtp.learning import BlockFeedback
from alkit.dtp.networks import Net, Pass
from alkit.dtp.targets import local_gradients, next_target, output_target
from alkit.engine.device import beside, device_of, place
from alkit.engine.loss_log import LossLog
from alkit.engine.optimizers import Factory, made
from alkit.engine.random import noise_of_loss


class TargetStage:
    """Block `n` of a network.

    Args:
        factory: of the forward weights' optimiser.
    Attributes:
        learned: the losses of each batch's loop, (K,).
    """

    def __init__(
        self, net: Net, n: int, feedback: BlockFeedback, factory: Factory, lr: float
    ) -> None:
        self.net, self.n, self.feedback = net, n, feedback
        self.block, self.is_last = net.blocks[n], n == len(net) - 1
        self.device = device_of(self.block)
        beside(net.loss, self.block)
        self.parameters = self.block.forward_parameters()
        names = {id(each): name for name, each in net.named_parameters()}
        named = [(names[id(each)], each) for each in self.parameters]
        self.optimizer = made(factory, named, lr=lr)
        self.learned: list[Tensor] = []

    def begin(self, losses: LossLog, step: int, run: Pass) -> None:
        """Begin an epoch, in which the stages of a process share what they keep of a batch."""
        self.losses, self.first, self.run, self.learned = losses, step, run, []

    def forward(self, payload: Any, batch: int, micro: int) -> Any:
        """Take (x, y), hand on (s, y); the last block notes the loss."""
        x, y = place(payload, self.block)
        self.run.inputs[self.n] = x = x.detach()
        self.run.s[self.n], self.run.notes[self.n] = s, _ = self.block(x)
        self.y = y
        if self.is_last:
            with self._noise(batch):
                self.losses.note(self.net.loss(s.detach(), y).view(1))
        return None if self.is_last else (s.detach(), y)

    def learn(self, payload: None, batch: int, micro: int) -> None:
        """Let the feedback learn."""
        self.learned.append(self.feedback.learn(self.n, self.run, self.first + batch))

    def target(self, payload: Tensor | None, batch: int, micro: int) -> Tensor | None:
        """Take the delta of the block above, as it sent it down, and send the next one's."""
        if self.is_last:
            with torch.enable_grad(), self._noise(batch):
                beta = self.feedback.settings.beta
                payload = output_target(self.run.s[self.n], self.y, beta, self.net.loss)
        assert payload is not None
        self.delta = place(payload, self.block)
        if not self.n:
            return None
        return next_target(self.net, self.run, self.n, self.delta, self.feedback.rule)

    def backward(self, payload: None, batch: int, micro: int) -> None:
        """Compute the gradients of the local loss."""
        found = local_gradients(self.net, self.run, self.n, self.delta)
        for parameter, gradient in zip(self.parameters, found, strict=True):
            parameter.grad = gradient

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step the forward weights."""
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def _noise(self, batch: int) -> AbstractContextManager[Any]:
        return noise_of_loss(self.net.loss, self.feedback.seed, "loss", self.first + batch)
