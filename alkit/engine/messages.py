r"""Hand trees of tensors from one rank to another over torch.distributed, in order.

    a message      header (64 bytes) | skeleton | tensor | tensor | ...   each at a multiple of 64

The skeleton is the payload with tensors that have shapes and strides and no data. It travels when
it has changed. It is read by `torch.load` with `weights_only=True`: nothing else is unpickled. gloo
sends from the host's memory, so what is on a device goes through it, and who takes it moves it to
where it is worked on.

gloo sends what the receiver has asked for. If a receiver asks late, its request queues up behind
what it sends itself, and the two directions of a link take turns. So it asks ahead, with as much
room as it has ever needed. What both sides know to fit there is as large as the message of the same
place `lag` batches before; the rest of a larger one follows by itself:

    batch t             small at first: [header]  [rest]         asked for when the header is there
    batch t + lag       [header, skeleton, tensors]              asked for when its batch began
"""

import hashlib
import io
from collections import deque
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from alkit.base import tree

END = -1  # the place in the message that ends a stream
ALIGNED = 64  # bytes: where torch lets tensors begin, so kernels take the same way through them


class Message(NamedTuple):
    """What `Receiver.take` gives.

    Attributes:
        place: a number for what the payload is of; END: no message follows.
        batch: its number; at the END how many there were.
        mark: a fingerprint of the batch.
    """

    place: int
    batch: int
    mark: int
    payload: Any


class Sender:
    """Messages to another rank.

    Args:
        peer: the rank.
        lag: see above; the receiver has the same.
        room: messages on their way that nobody waits for.
    """

    def __init__(self, peer: int, *, lag: int, room: int) -> None:
        self.peer, self.lag, self.room = peer, lag, room
        self.sent, self.sizes = 0, dict[tuple[int, int], int]()
        self.kinds: dict[int, Any] = {}
        self.under_way: deque[tuple[Any, Tensor]] = deque()

    def send(self, place: int, batch: int, mark: int, payload: Any) -> None:
        """Begin to send; waits for the first message on its way where there are too many."""
        payload = tree.map_tensors(_on_host, payload)
        kind = tree.map_tensors(_layout, payload)
        known = place in self.kinds and self.kinds[place] == kind
        self.kinds[place] = kind
        whole = _packed((place, batch, mark), payload, with_skeleton=not known)
        fits = min(len(whole), self.sizes.pop((place, batch - self.lag), ALIGNED))
        self.sizes[place, batch] = len(whole)
        whole[40:48].view(torch.int64)[0] = fits
        for part, tag in ((whole[:fits], 2 * self.sent), (whole[fits:], 2 * self.sent + 1)):
            if len(part):  # it must live until it has been taken
                self.under_way.append((dist.isend(part, self.peer, tag=_tag(tag)), part))
        self.sent += 1
        self.settle(2 * self.room)

    def settle(self, room: int = 0) -> None:
        """Wait until at most so many parts are on their way."""
        while len(self.under_way) > room:
            self.under_way.popleft()[0].wait()


class Receiver:
    """Messages from another rank, in the order of its `send`."""

    def __init__(self, peer: int, *, lag: int) -> None:
        self.peer, self.lag = peer, lag
        self.asked: deque[tuple[Any, Tensor]] = deque()
        self.begun = self.taken = 0
        self.largest, self.sizes = ALIGNED, dict[tuple[int, int], int]()
        self.skeletons: dict[int, Any] = {}

    def ask(self, place: int, batch: int) -> bool:
        """Ask for the next message; False if it isn't known yet how much of it will fit."""
        if place != END and batch >= self.lag and (place, batch - self.lag) not in self.sizes:
            return False
        self.sizes.pop((place, batch - self.lag), None)
        made = torch.empty(self.largest, dtype=torch.uint8)
        self.asked.append((dist.irecv(made, self.peer, tag=_tag(2 * self.begun)), made))
        self.begun += 1
        return True

    def take(self) -> Message:
        """Wait for the first message that was asked for."""
        work, whole = self.asked.popleft()
        work.wait()
        place, batch, mark, described, size, fits = whole[:48].view(torch.int64).tolist()
        if size > fits:
            first, whole = whole, torch.empty(size, dtype=torch.uint8)
            whole[:fits] = first[:fits]
            dist.recv(whole[fits:], self.peer, tag=_tag(2 * self.taken + 1))
        self.taken += 1
        self.largest, self.sizes[place, batch] = max(self.largest, size), size
        if described:
            self.skeletons[place] = _skeleton(whole, described)
        return Message(place, batch, mark, _unpacked(whole, described, self.skeletons[place]))


def sendable(kind: type) -> type:
    """Let a named tuple travel between ranks as what it is; a decorator of its class."""
    torch.serialization.add_safe_globals([kind])
    return kind


def broadcast(payload: Any, source: int) -> Any:
    """Return on every rank what rank `source` gives; the others' payload is not looked at."""
    mine, whole = dist.get_rank() == source, torch.empty(0, dtype=torch.uint8)
    if mine:
        whole = _packed((0, 0, 0), tree.map_tensors(_on_host, payload), with_skeleton=True)
    size = torch.tensor([len(whole)])
    dist.broadcast(size, source)
    whole = whole if mine else torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(whole, source)
    if mine:
        return payload
    described = int(whole[24:32].view(torch.int64))
    found = _unpacked(whole, described, _skeleton(whole, described))
    return tree.map_tensors(torch.clone, found)  # what is kept may be saved, tensor by tensor


def fingerprint(y: Any) -> int:
    """Return a number that tells batches apart by the bytes of their labels."""
    digest = hashlib.blake2b(digest_size=7)
    for tensor in tree.tensors(y):
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest(), "little")


def _packed(numbers: tuple[int, int, int], payload: Any, *, with_skeleton: bool) -> Tensor:
    """Return a message as bytes."""
    text = io.BytesIO()
    if with_skeleton:
        torch.save(tree.map_tensors(lambda each: each.to("meta"), payload), text)
    described, tensors = text.tell(), list(tree.tensors(payload))
    starts = _starts(described, tensors)
    whole = torch.empty(starts[-1], dtype=torch.uint8)
    whole[:48].view(torch.int64)[:] = torch.tensor([*numbers, described, len(whole), 0])
    if described:
        whole[ALIGNED : ALIGNED + described] = torch.frombuffer(text.getbuffer(), dtype=torch.uint8)
    for start, tensor in zip(starts, tensors, strict=False):
        whole[start : start + tensor.nbytes].view(tensor.dtype)[:] = _flat(tensor)
    return whole


def _unpacked(whole: Tensor, described: int, skeleton: Any) -> Any:
    """Return a message's payload; its tensors share the message's memory, and nothing else."""
    starts = iter(_starts(described, list(tree.tensors(skeleton))))

    def found(each: Tensor) -> Tensor:
        at = next(starts) // each.itemsize
        made = torch.empty(0, dtype=each.dtype)
        return made.set_(whole.untyped_storage(), at, each.shape, each.stride())

    return tree.map_tensors(found, skeleton)


def _starts(described: int, tensors: list[Tensor]) -> list[int]:
    """Return where the tensors of a message begin, and its size."""
    found = [ALIGNED + _aligned(described)]
    for tensor in tensors:
        found.append(found[-1] + _aligned(tensor.numel() * tensor.itemsize))
    return found


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _skeleton(whole: Tensor, described: int) -> Any:
    text = whole[ALIGNED : ALIGNED + described].numpy().tobytes()
    return torch.load(io.BytesIO(text), weights_only=True)


def _on_host(tensor: Tensor) -> Tensor:
    """Return a tensor without gaps; channels that lie innermost stay there, for the same bits."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return tensor if last else tensor.contiguous()


def _layout(tensor: Tensor) -> Any:
    return tensor.dtype, tensor.shape, tensor.stride()


def _flat(tensor: Tensor) -> Tensor:
    return tensor.as_strided((tensor.numel(),), (1,))


def _tag(number: int) -> int:
    return number % (1 << 30)
