"""Count the bytes that autograd keeps for the backward, exactly and on any device.

    forward    autograd saves a tensor      ->  its storage is counted, once however often saved
    backward   autograd lets it go          ->  the storage leaves the count with its last holder

Parameters are not counted: they are there anyway. What an operator keeps inside itself (the
workspace of a fused LSTM) is not seen.
"""

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn


class Ledger:
    """The bytes kept by all forwards that ran inside `recording`, from any thread.

    Attributes:
        now: bytes that are kept at present.
        peak: the most that were ever kept.

    Example:
        ledger = Ledger(model)
        with ledger.recording():
            loss = model(x).sum()
        ledger.now, ledger.peak
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        own = [] if model is None else [*model.parameters(), *model.buffers()]
        self.now = self.peak = 0
        self._own = {_storage(tensor)[0] for tensor in own}
        self._holders: dict[int, int] = {}  # address of a storage -> saved tensors that use it
        self._lock = threading.RLock()  # freeing a tensor may run inside an allocation of ours

    @contextmanager
    def recording(self, *own: Iterable[Tensor]) -> Iterator[None]:
        """Count what the forwards of the calling thread save in this block.

        Args:
            own: tensors that are not to be counted, such as a version of the weights.
        """
        addresses = self._own | {_storage(tensor)[0] for tensors in own for tensor in tensors}
        pack = partial(self._pack, addresses)
        with torch.autograd.graph.saved_tensors_hooks(pack, _unpack):
            yield

    def _pack(self, own: Collection[int], tensor: Tensor) -> "Tensor | _Kept":
        address, size = _storage(tensor)
        if not size or address in own:
            return tensor
        with self._lock:
            held = self._holders.get(address, 0)
            self._holders[address] = held + 1
            if not held:
                self.now += size
                self.peak = max(self.peak, self.now)
        return _Kept(self, tensor)

    def _release(self, tensor: Tensor) -> None:
        address, size = _storage(tensor)
        with self._lock:
            self._holders[address] -= 1
            if not self._holders[address]:
                del self._holders[address]
                self.now -= size


class _Kept:
    """A saved tensor; it leaves the ledger when autograd drops it."""

    def __init__(self, ledger: Ledger, tensor: Tensor) -> None:
        # an output that is saved would otherwise hold the node that holds it
        self.ledger, self.tensor = ledger, tensor.detach()

    def __del__(self) -> None:
        self.ledger._release(self.tensor)


def _unpack(kept: Tensor | _Kept) -> Tensor:
    return kept.tensor if isinstance(kept, _Kept) else kept


def _storage(tensor: Tensor) -> tuple[int, int]:
    """Return address and bytes of what the tensor is a view of."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()
