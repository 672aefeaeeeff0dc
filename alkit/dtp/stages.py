"""A block under target propagation as a stage: what the engine runs, on threads or on ranks.

forward    s = F(x), on a detached input            learn     K iterations of the block's feedback
target     take the own delta, hand down the next   backward  gradients of the local loss
update     a step of the block's own optimiser
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from alkit.dtp.feedback import BlockFeedback
from alkit.dtp.networks import Net, Pass
from alkit.dtp.optimizers import optimizer
from alkit.dtp.settings import Settings
from alkit.dtp.targets import RULES, output_target
from alkit.engine.device import beside, device_of, place
from alkit.engine.loss_log import LossLog
from alkit.engine.optimizers import Factory, made, step_at
from alkit.engine.random import noise_of_loss


class TargetStage:
    """Block `n` of a network.

    Attributes:
        learned: the losses of each batch's loop, (K,).
    """

    def __init__(
        self,
        net: Net,
        n: int,
        feedback: BlockFeedback,
        settings: Settings,
        factory: Factory | None = None,
    ) -> None:
        self.net, self.n, self.feedback, self.settings = net, n, feedback, settings
        self.block, self.is_last = net.blocks[n], n == len(net) - 1
        self.device = device_of(self.block)
        beside(net.loss, self.block)
        self.parameters = self.block.forward_parameters()
        own = settings
        options: dict[str, Any] = {"momentum": own.momentum, "weight_decay": own.weight_decay}
        make = factory or partial(optimizer, own.forward_optimizer, **options)
        names = {id(each): name for name, each in net.named_parameters()}
        named = [(names[id(each)], each) for each in self.parameters]
        self.optimizer = made(make, named, lr=own.lr)
        self.learned: list[Tensor] = []

    def begin(self, losses: LossLog, step: int, factor: Callable[[int], float], run: Pass) -> None:
        """Begin an epoch, in which the stages of a process share what they keep of a batch."""
        self.losses, self.first, self.factor, self.run = losses, step, factor, run
        self.learned = []

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

    @torch.no_grad()
    def target(self, payload: Tensor | None, batch: int, micro: int) -> Tensor | None:
        """Take the delta of the block above, as it sent it down, and send the next one's."""
        s = self.run.s[self.n]
        if self.is_last:
            with torch.enable_grad(), self._noise(batch):
                payload = output_target(s, self.y, self.settings.beta, self.net.loss)
        assert payload is not None
        self.delta = place(payload, self.block)
        if not self.n:
            return None
        return RULES[self.feedback.rule](self.net, self.run, self.n, self.delta)

    def backward(self, payload: None, batch: int, micro: int) -> None:
        """Compute the gradients of the local loss."""
        s, own = self.run.s[self.n], self.parameters
        found = torch.autograd.grad(s, own, -self.delta / len(s)) if own else ()
        for parameter, gradient in zip(own, found, strict=True):
            parameter.grad = gradient

    def update(self, payload: None, batch: int, micro: int) -> None:
        """Step at this step's rate."""
        if self.optimizer is None:
            return
        if self.settings.clip is not None:
            clip_grad_norm_(self.parameters, self.settings.clip)
        step_at(self.optimizer, self.factor(self.first + batch))
        self.optimizer.zero_grad(set_to_none=True)

    def _noise(self, batch: int) -> AbstractContextManager[Any]:
        return noise_of_loss(self.net.loss, self.settings.seed, "loss", self.first + batch)
