"""The bytes that autograd keeps for the backward, at present and at most."""

import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


class Ledger:
    """The bytes that autograd keeps for the backward, exactly, on any device, from any thread.

    A storage counts once, however often it is saved, until autograd lets it go. Parameters and
    buffers of `model` don't count. What an operator keeps inside itself is not seen. `now` is kept
    at present, `peak` was the most.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        own = [] if model is None else [*model.parameters(), *model.buffers()]
        self.now = self.peak = 0
        self._own = {_storage(tensor)[0] for tensor in own}
        self._holders = Counter[int]()  # by address of a storage: saved tensors that use it
        self._lock = threading.RLock()  # freeing a tensor may run inside an allocation of ours

    @contextmanager
    def recording(self, *own: Iterable[Tensor]) -> Iterator[None]:
        """Count what forwards of the calling thread save in this block, but for `own` tensors."""
        addresses = self._own | {_storage(tensor)[0] for tensors in own for tensor in tensors}

        def pack(tensor: Tensor) -> Tensor:
            address, size = _storage(tensor)
            if not size or address in addresses:
                return tensor
            # an output that is saved would otherwise hold the node that holds it
            kept = tensor.detach()
            self._count(address, size, 1)
            weakref.finalize(kept, self._count, address, size, -1)  # when autograd drops it
            return kept

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
            yield

    def _count(self, address: int, size: int, change: int) -> None:
        """Note one more, or one less, saved tensor of a storage."""
        with self._lock:
            before = self._holders[address]
            self._holders[address] += change
            if not min(before, before + change):  # the first one, or the last
                self.now += change * size
                self.peak = max(self.peak, self.now)
            if not self._holders[address]:
                del self._holders[address]


def counting(model: Iterable[nn.Module], ledgers: Iterable[Ledger]) -> None:
    """Let a ledger a module, or AL layer, count what its graphs keep, without weights."""
    for module, ledger in zip(model, ledgers, strict=True):
        vars(module)["forward"] = partial(_counted, module, ledger)


def _counted(module: nn.Module, ledger: Ledger, *given: Any) -> Any:
    with ledger.recording(module.parameters(), module.buffers()):
        return type(module).forward(module, *given)


def _storage(tensor: Tensor) -> tuple[int, int]:
    """Return address and bytes of what the tensor is a view of."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()
