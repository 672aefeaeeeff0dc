"""DDTP: a linear map from the output straight back to each hidden block (Meulemans et al., 2020).

    learn     dh ~ N(0, sigma^2), pushed through all later blocks to the output:
              mean | dh - Q_n (out(s_n + dh) - out(s_n)) |^2
    targets   delta_n = Q_n delta_(N-1)

The minimum is the pseudo-inverse of the Jacobian of all later blocks: targets of Gauss and Newton
instead of gradients, and no loop is local to its block. Loops are those of blocks 0 to N - 2, so
lists of settings begin with block 0.
"""

import math

import torch
from torch import Tensor, nn

from alkit.data.seeds import generator_for
from alkit.dtp.feedback import BlockFeedback
from alkit.dtp.networks import Net, Pass
from alkit.dtp.noise import Noise
from alkit.dtp.settings import Settings


class DirectFeedback(BlockFeedback):
    """Maps Q_n of shape (features of s_n, classes) for all blocks but the last.

    They are parameters `direct_0`, `direct_1`, ... of the network, so that its state holds them.
    """

    def __init__(self, net: Net, settings: Settings, sample: Tensor) -> None:
        if settings.samples != 1:
            raise ValueError(f"samples is {settings.samples}: ddtp draws one sample, set it to 1")
        with torch.no_grad():
            outputs = net.locally(sample[:1]).s
        bound = 1 / math.sqrt(outputs[-1].shape[1])
        for n, s in enumerate(outputs[:-1]):
            if not hasattr(net, f"direct_{n}"):
                made = torch.empty(s[0].numel(), outputs[-1].shape[1], dtype=s.dtype)
                made.uniform_(-bound, bound, generator=generator_for(settings.seed, "direct", n))
                net.register_parameter(f"direct_{n}", nn.Parameter(made.to(s.device)))
        super().__init__(net, settings)
        self.rule = "direct"

    def parameters(self, n: int) -> list[nn.Parameter]:
        """Return Q_n."""
        return [self._map(n)]

    def targets(self, run: Pass, last: Tensor) -> list[Tensor]:
        """Return all blocks' deltas from the output's."""
        with torch.no_grad():
            found = [(last @ self._map(n).T).view_as(run.s[n]) for n in self.loops]
        return [*found, last]

    def own_delta(self, n: int, run: Pass, sent: Tensor) -> Tensor:
        """Return block n's delta of the output's."""
        return (sent @ self._map(n).T).view_as(run.s[n])

    def _map(self, n: int) -> nn.Parameter:
        return getattr(self.net, f"direct_{n}")

    def _loops(self) -> list[int]:
        return list(range(len(self.net) - 1))

    def _batch(self, n: int, run: Pass) -> tuple[Tensor, Tensor]:
        return run.s[n].detach(), run.s[-1].detach()

    @torch.no_grad()
    def _gradient(
        self, n: int, batch: tuple[Tensor, Tensor], noise: Noise
    ) -> tuple[Tensor, list[Tensor]]:
        s, out = batch
        dh = noise.draw(s, self.sigma(n), "x")
        noisy = s + dh
        for block in self.net.blocks[n + 1 :]:
            noisy, _ = block(noisy)
        change = noisy - out
        error = change @ self._map(n).T - dh.flatten(1)
        return error.square().sum() / len(s), [error.T @ change * (2 / len(s))]
