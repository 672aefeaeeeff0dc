"""Learning of the feedback, block by block: each loop touches its own block's B alone.

    for each trained block n, in any order, on any process
        K_n times:  noise -> gradient of the block's loss by B_n -> a step of its optimiser

Forward weights and activations stand still meanwhile. The optimisers' momentum goes on from batch
to batch.
"""

from typing import Any

import torch
from torch import Tensor, nn

from alkit.dtp import closed_form, losses
from alkit.dtp.networks import Net, Pass
from alkit.dtp.noise import draw, noise_for
from alkit.dtp.optimizers import optimizer
from alkit.dtp.settings import METHODS, Lists, Settings


class NotFinite(FloatingPointError):
    """A loss is not finite."""


class BlockFeedback:
    """The feedback maps G_n of a network's blocks, and how they learn.

    Args:
    Attributes:
        loops: numbers of the blocks whose feedback learns.
        lists: iterations, noise and rate of each of them.
        optimizers: of each block.
    """

    def __init__(self, net: Net, settings: Settings) -> None:
        self.net, self.settings = net, settings
        self.loss, self.rule = METHODS[settings.method]
        self.loops = net.trained
        self.lists: Lists = settings.lists([net.label(n) for n in self.loops])
        kind, momentum = settings.feedback_optimizer, settings.feedback_momentum
        self.optimizers = {
            n: optimizer(kind, self.parameters(n), lr, momentum)
            for n, lr in zip(self.loops, self.lists.feedback_lr, strict=True)
        }

    def parameters(self, n: int) -> list[nn.Parameter]:
        """Return what block n's loop changes."""
        return self.net.blocks[n].feedback_parameters()

    def iterations(self, n: int) -> int:
        """Return K_n."""
        return self.lists.iterations[self.loops.index(n)]

    def learn(self, n: int, run: Pass, step: int, iterations: int | None = None) -> Tensor:
        """Run block n's loop on one batch, and return the loss of each iteration, (K_n,).

        Args:
            step: number of the batch, which the noise depends on.
            iterations: instead of the block's own number.
        Raises:
            NotFinite: a loss is not; says what to lower.
        """
        count = self.iterations(n) if iterations is None else iterations
        parameters = self.parameters(n)
        noise = noise_for(self.settings.seed, step, n)
        batch = self._batch(n, run)
        found = []
        for _ in range(count):
            loss, gradients = self._gradient(n, batch, noise)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.to(parameter.dtype)  # autocast gives halves
            self.optimizers[n].step()
            found.append(loss.detach())
        made = torch.stack(found) if found else torch.zeros(0)
        self._check(n, made, step)
        return made

    def sigma(self, n: int) -> float:
        """Return the noise of block n."""
        return self.lists.sigma[self.loops.index(n)]

    @torch.no_grad()
    def _batch(self, n: int, run: Pass) -> Any:
        """Return what stays the same over a loop: x, y, notes and psi(y)."""
        block, x = self.net.blocks[n], run.inputs[n]
        y, notes = run.s[n].detach(), run.notes[n]
        if self.settings.samples > 1:  # as many draws at once as there are copies
            x = x.repeat_interleave(self.settings.samples, 0)
            y, notes = block(x)
        return x, y, notes, block.psi(y, notes) if self._closed(n) else None

    def _closed(self, n: int) -> bool:
        return self.settings.form == "closed" and self.net.blocks[n].linear is not None

    def _gradient(self, n: int, batch: Any, noise: torch.Generator) -> tuple[Tensor, list[Tensor]]:
        """Return loss and gradients for one draw of noise, of what `_batch` returned."""
        block, sigma, index = self.net.blocks[n], self.sigma(n), self.settings.index
        x, y, notes, base = batch
        drawn = [draw(x, sigma, noise)]
        if self.loss != "reconstruction":
            drawn.append(draw(y, sigma, noise))
        if self._closed(n):
            if self.loss == "reconstruction":
                found = closed_form.reconstruction_gradient(block, x, notes, *drawn, index=index)
            else:
                found = closed_form.l_drl_gradient(
                    block, x, y, notes, *drawn, index=index, base=base
                )
            return found[0], [found[1]]
        if self.loss == "reconstruction":
            loss = losses.reconstruction(block, x, notes, *drawn, index=index)
        else:
            loss = losses.l_drl(block, x, y, notes, *drawn, index=index)
        return loss, list(torch.autograd.grad(loss, self.parameters(n)))

    def _check(self, n: int, made: Tensor, step: int) -> None:
        if not torch.isfinite(made).all():
            at = self.loops.index(n)
            raise NotFinite(
                f"the feedback loss of {self.net.label(n)} is not finite at step {step}: lower"
                f" feedback_lr ({self.lists.feedback_lr[at]:g}) or sigma ({self.sigma(n):g}), or,"
                f" if activations grow, lr ({self.settings.lr:g})"
            )
