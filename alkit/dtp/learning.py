r"""Learn the feedback of a block from noise, within this block only.

x, s = F(x) are constants, dx and dy noise of their shapes; b samples.

    l_drl            mean [ -2 <dx, G(F(x + dx)) - G(s)>  +  |G(s + dy) - G(s)|^2 ]
    reconstruction   mean   |(x + dx) - G(F(x + dx))|^2                         vanilla DTP and TP

For small noise or a linear block, L-DRL is smallest over B at the transposed Jacobian of F, and
reconstruction at the inverse of F where it has one. Where G is R B psi(s), the gradient can be
written down with D1 = psi(F(x + dx)) - psi(s), D2 = psi(s + dy) - psi(s) and e = B D2:

    loss      =  1/b [ |e|^2 - 2 <dx, B D1> ]
    gradient  =  2/b [ corr(D2, e) - corr(D1, dx) ]         one weight gradient of a batch of 2 b

    autograd form   1 forward + 3 feedback + 3 weight gradients     7 convolutions
    closed form     1 forward + 1 feedback + 1 of a double batch    4

(As published the clean forward pass is run again in every iteration: 8.)
<B, gradient> = 2/b [ |e|^2 - <dx, B D1> ], so the loss needs no further convolution either.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from alkit.base.seeds import generator_for
from alkit.dtp.block import Block, Notes, Pass
from alkit.dtp.networks import Net
from alkit.dtp.settings import METHODS, Settings, aligned

Found = tuple[Tensor, Tensor]


def noise_for(seed: int, step: int, block: int) -> Generator:
    """Return the generator of the loop of a block in one step, on any rank and at any time.

    Its iterations draw from it in turn, dx before dy.
    """
    return generator_for(int(seed), "feedback noise", int(step), int(block))


def draw(like: Tensor, sigma: float, generator: Generator) -> Tensor:
    """Return normal noise of variance sigma^2, with the shape and type of a tensor, where it is.

    Drawn on the CPU, so that it is the same on every device.
    """
    drawn = torch.empty(like.shape, dtype=like.dtype)
    return drawn.normal_(0.0, sigma, generator=generator).to(like.device)


def l_drl(block: Block, clean: Pass, dx: Tensor, dy: Tensor, *, index: str = "own") -> Tensor:
    """Return the loss of learned backprop targets for one draw of noise, by autograd.

    Args:
        index: places for unpooling in G(F(x + dx)): "own", the places of the noisy pass, as
            published; "frozen", those of the clean pass, which keeps the scale right.
    """
    noisy, notes = _noisy(block, clean, dx, index)
    base = block.feedback(clean.s, clean.notes)
    forward = block.feedback(noisy, notes) - base
    backward = block.feedback(clean.s + dy, clean.notes) - base
    return (backward.square().sum() - 2 * (dx * forward).sum()) / len(dx)


def reconstruction(block: Block, clean: Pass, dx: Tensor, *, index: str = "own") -> Tensor:
    """Return the squared error of rebuilding x + dx, as in Lee et al. (2015), by autograd."""
    rebuilt = block.feedback(*_noisy(block, clean, dx, index))
    return (clean.x + dx - rebuilt).square().sum() / len(dx)


@torch.no_grad()
def l_drl_by_hand(
    block: Block, clean: Pass, dx: Tensor, dy: Tensor, *, index: str = "own"
) -> Found:
    """Return loss and gradient in closed form."""
    piece, (x, s, notes, base) = block.affine[0], clean
    base = block.psi(s, notes) if base is None else base
    first = block.psi(*_noisy(block, clean, dx, index)) - base
    second = block.psi(s + dy, notes) - base
    error = piece.feedback(second, notes[block.at])
    outer = torch.cat([error, dx.reshape_as(error)])
    gradient = piece.feedback_gradient(outer, torch.cat([second, -first])).mul_(2 / len(x))
    return (piece.back.weight * gradient).sum() - error.square().sum() / len(x), gradient


@torch.no_grad()
def reconstruction_by_hand(block: Block, clean: Pass, dx: Tensor, *, index: str = "own") -> Found:
    """Return loss and gradient in closed form."""
    piece, inner = block.affine[0], block.psi(*_noisy(block, clean, dx, index))
    rebuilt = piece.feedback(inner, clean.notes[block.at])
    error = rebuilt - (clean.x + dx).reshape_as(rebuilt)
    gradient = piece.feedback_gradient(error, inner).mul_(2 / len(dx))
    return error.square().sum() / len(dx), gradient


@torch.no_grad()
def _noisy(block: Block, clean: Pass, dx: Tensor, index: str) -> tuple[Tensor, Notes]:
    """Return F(x + dx), and the notes that its feedback takes."""
    noisy, own = block(clean.x + dx)
    return noisy, own if index == "own" else clean.notes


class BlockFeedback:
    """Let the feedback maps G_n of all blocks of a network learn, each on its own.

        for each trained block n, in any order, on any process
            K_n times:  noise -> gradient of the block's loss by B_n -> a step of its optimiser

    Forward weights and activations stand still meanwhile. The momentum of the optimisers goes on
    from batch to batch.

    `loops` are the blocks whose feedback learns, each with its iterations, sigma, rate, optimiser.
    """

    def __init__(self, net: Net, settings: Settings, method: str = "dtp", seed: int = 0) -> None:
        self.net, self.settings, self.seed = net, settings, seed
        self.loss, self.rule = METHODS[method]
        self.loops, labels = net.trained, {n: net.label(n) for n in net.trained}
        counts = aligned("iterations", settings.iterations, labels)
        self.iterations = {n: int(count) for n, count in counts.items()}
        self.sigma = aligned("sigma", settings.sigma, labels)
        self.feedback_lr = aligned("feedback_lr", settings.feedback_lr, labels)
        make = settings.feedback_optimizer
        self.optimizers = {n: make(self.parameters(n), lr=lr) for n, lr in self.feedback_lr.items()}

    def parameters(self, n: int) -> list[nn.Parameter]:
        """Return the parameters that the loop of block n changes."""
        return self.net.blocks[n].feedback_parameters()

    def learn(self, n: int, passed: Pass, step: int) -> Tensor:
        """Run the loop of block n on batch `step`; return the loss of each iteration, (K_n,)."""
        noise, clean = noise_for(self.seed, step, n), self.clean(n, passed)
        found = [self._step(n, clean, noise) for _ in range(self.iterations[n])]
        losses = torch.stack(found) if found else torch.zeros(0)
        if not torch.isfinite(losses).all():
            raise FloatingPointError(
                f"the feedback loss of {self.net.label(n)} is not finite at step {step}: lower"
                f" feedback_lr ({self.feedback_lr[n]:g}) or sigma ({self.sigma[n]:g}), or, if"
                " activations grow, lr"
            )
        return losses

    def gradient(self, n: int, clean: Pass, noise: Generator) -> tuple[Tensor, list[Tensor]]:
        """Return loss and gradients for one draw of noise."""
        block, index = self.net.blocks[n], self.settings.index
        drawn = [draw(clean.x, self.sigma[n], noise)]
        if self.loss == "l_drl":
            drawn.append(draw(clean.s, self.sigma[n], noise))
        by_autograd, by_hand = LOSSES[self.loss]
        if clean.base is not None:
            loss, gradient = by_hand(block, clean, *drawn, index=index)
            return loss, [gradient]
        loss = by_autograd(block, clean, *drawn, index=index)
        return loss.detach(), list(torch.autograd.grad(loss, self.parameters(n)))

    @torch.no_grad()
    def clean(self, n: int, passed: Pass) -> Pass:
        """Return the pass that a loop keeps; with psi(s) if gradients are to be by hand."""
        block, found = self.net.blocks[n], passed._replace(s=passed.s.detach())
        if self.settings.samples > 1:  # as many draws at once as there are copies
            found = block.locally(found.x.repeat_interleave(self.settings.samples, 0))
        if self.settings.form == "closed" and block.linear:
            found = found._replace(base=block.psi(found.s, found.notes))
        return found

    def _step(self, n: int, clean: Pass, noise: Generator) -> Tensor:
        loss, gradients = self.gradient(n, clean, noise)
        for parameter, gradient in zip(self.parameters(n), gradients, strict=True):
            parameter.grad = gradient.to(parameter.dtype)  # autocast gives halves
        self.optimizers[n].step()
        return loss


LOSSES: dict[str, tuple[Callable[..., Tensor], Callable[..., Found]]] = {
    "l_drl": (l_drl, l_drl_by_hand),
    "reconstruction": (reconstruction, reconstruction_by_hand),
}
