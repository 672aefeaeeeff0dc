"""Running statistics of a whole batch where a module sees its micro-batches one by one.

Micro-batches are normalised by their own statistics all the same; what evaluation uses is moved
once a batch, by the mean and variance of all of its samples, as without micro-batches.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class DeferredBatchNorm:
    """The batch norms of one module that train and keep running statistics."""

    def __init__(self, module: nn.Module) -> None:
        named = module.named_modules()
        self.norms = {n: own for n, own in named if isinstance(own, _BatchNorm) and _keeps(own)}
        # of each norm's each use in a forward: values, mean, squared deviations
        self.seen: dict[tuple[str, int], tuple[int, Tensor, Tensor]] = {}

    def buffers(self) -> dict[str, Tensor]:
        """Return copies of their buffers by name, for a micro-batch to move in vain."""
        return {
            f"{name}.{key}": buffer.clone()
            for name, norm in self.norms.items()
            for key, buffer in norm.named_buffers(recurse=False)
        }

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take in what passes the norms in this block, a micro-batch's forward."""
        uses = Counter[str]()

        def look(name: str) -> Any:
            def hook(norm: nn.Module, given: tuple[Tensor, ...]) -> None:
                if norm.training:
                    self._add((name, uses[name]), given[0].detach())
                    uses[name] += 1

            return hook

        with ExitStack() as hooks:
            for name, norm in self.norms.items():
                hooks.callback(norm.register_forward_pre_hook(look(name)).remove)
            yield

    @torch.no_grad()
    def move(self) -> None:
        """Move the running statistics by what was taken in since the last time."""
        for (name, _), (count, mean, deviations) in self.seen.items():
            norm = self.norms[name]
            assert isinstance(norm.num_batches_tracked, Tensor)  # it keeps statistics
            norm.num_batches_tracked += 1
            share = norm.momentum
            if share is None:  # the mean over all batches
                share = 1.0 / float(norm.num_batches_tracked)
            found = (norm.running_mean, mean), (norm.running_var, deviations / (count - 1))
            for running, new in found:
                assert isinstance(running, Tensor)  # likewise
                running.lerp_(new.to(running.dtype), share)
        self.seen = {}

    def _add(self, use: tuple[str, int], x: Tensor) -> None:
        """Join the moments of two sets of samples (Chan et al. 1979)."""
        over = [dim for dim in range(x.dim()) if dim != 1]
        x = x if x.dtype == torch.float64 else x.float()  # of half precision sums say little
        variance, mean = torch.var_mean(x, over, correction=0)
        count, mean = x.numel() // x.shape[1], mean.double()
        deviations = variance.double() * count
        if use in self.seen:
            before, old, squares = self.seen[use]
            apart, total = mean - old, before + count
            deviations = squares + deviations + apart**2 * (before * count / total)
            count, mean = total, old + apart * (count / total)
        self.seen[use] = count, mean, deviations


def _keeps(norm: _BatchNorm) -> bool:
    return norm.running_mean is not None
