r"""Messages between ranks over torch.distributed: trees of tensors, as bytes.

    Sender, Receiver    from one rank to another, in the order of a schedule
    Group               from one rank to all, sums over all; do all still agree?

    a message      header (64 bytes) and skeleton | tensor | tensor | ...   each at a multiple of 64

The skeleton is the payload with tensors that have shapes and strides and no data. It travels when
it has changed, and is read by `torch.load` with `weights_only=True`: nothing else is unpickled.
gloo sends from the memory of the host, so the receiver moves a message to where it works on it.

gloo sends what the receiver has asked for. If a receiver asks late, its request queues up behind
what it sends itself, and the two directions of a link take turns. So it asks ahead, by place and
batch. Both sides know that as many bytes fit as the message of the same place had `lag` batches
before; the rest of a larger one follows by itself:

    batch t             small at first: [header]  [rest]         asked for when the header is there
    batch t + lag       [header, skeleton, tensors]              asked for when its batch began
"""

import hashlib
import io
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from alkit.base import tree

END = -1  # the mark of a message that says: this batch will not come
ALIGNED = 64  # bytes: where torch lets tensors begin, so kernels take the same way through them
PLACES, BATCHES = 1 << 16, 1 << 13  # tags tell these apart; fewer batches are on their way
FILL = torch.zeros(ALIGNED, dtype=torch.uint8)


class Message(NamedTuple):
    """A message as `Receiver.take` gives it; its size is in bytes."""

    place: int  # a number for the place of the payload
    batch: int
    mark: int  # a fingerprint of the batch, or END
    payload: Any
    size: int


class Sender:
    """Messages to another rank: `room` of them may be on their way; `lag` is as in `Receiver`."""

    def __init__(self, peer: int, *, lag: int, room: int) -> None:
        self.peer, self.lag, self.room = peer, lag, room
        self.sizes, self.kinds = dict[tuple[int, int], int](), dict[int, Any]()
        self.under_way: deque[tuple[Any, Tensor]] = deque()

    def send(self, place: int, batch: int, mark: int, payload: Any) -> None:
        """Begin to send; waits where too many messages are on their way."""
        payload = tree.map_tensors(_on_host, payload)
        kind = tree.map_tensors(lambda own: (own.dtype, own.shape, own.stride()), payload)
        whole = _packed(mark, payload, with_skeleton=self.kinds.get(place) != kind)
        fits = min(len(whole), self.sizes.pop((place, batch - self.lag), ALIGNED))
        self.kinds[place], self.sizes[place, batch] = kind, len(whole)
        whole[24:32].view(torch.int64)[0] = fits
        for at, part in enumerate((whole[:fits], whole[fits:])):
            if len(part):  # it must live until it has been taken
                work = dist.isend(part, self.peer, tag=_tag(place, batch) + at)
                self.under_way.append((work, part))
        self.settle(2 * self.room)

    def settle(self, room: int = 0) -> None:
        """Wait until at most `room` parts are on their way."""
        while len(self.under_way) > room:
            self.under_way.popleft()[0].wait()


class Receiver:
    """Messages from another rank, for each place in the order of its `send`."""

    def __init__(self, peer: int, *, lag: int) -> None:
        self.peer, self.lag = peer, lag
        self.asked: dict[tuple[int, int], tuple[Any, Tensor]] = {}  # that may come, in order
        self.due = set[tuple[int, int]]()  # it isn't known yet how much of them will fit
        self.sizes, self.skeletons = dict[tuple[int, int], int](), dict[int, Any]()

    def ask(self, place: int, batch: int, *, empty: bool = False) -> None:
        """Ask for a message, as soon as it is known how much of it will fit; an empty one fits."""
        small = ALIGNED if empty or batch < self.lag else None
        fits = self.sizes.pop((place, batch - self.lag), small)
        if fits is None:
            self.due.add((place, batch))
            return
        made = torch.empty(fits, dtype=torch.uint8)
        work = dist.irecv(made, self.peer, tag=_tag(place, batch))
        self.asked[place, batch] = work, made

    def take(self, place: int, batch: int) -> Message:
        """Wait for a message that `ask` has asked for."""
        work, whole = self.asked.pop((place, batch))
        work.wait()
        mark, described, size, fits = whole[:32].view(torch.int64).tolist()
        if size > fits:
            first, whole = whole, torch.empty(size, dtype=torch.uint8)
            whole[:fits] = first[:fits]
            dist.recv(whole[fits:], self.peer, tag=_tag(place, batch) + 1)
        self.sizes[place, batch] = size
        if (later := (place, batch + self.lag)) in self.due:
            self.due.remove(later)
            self.ask(*later)
        payload, self.skeletons[place] = _unpacked(whole, described, self.skeletons.get(place))
        return Message(place, batch, mark, payload, size)


class Group:
    """The ranks that this process has joined; where there are none, or `alone`, rank 0 of 1."""

    def __init__(self, *, alone: bool = False) -> None:
        joined = not alone and dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if joined else 0
        self.ranks = dist.get_world_size() if joined else 1

    def broadcast(self, payload: Any, source: int = 0) -> Any:
        """Return the payload of rank `source` on every rank; other payloads are not looked at."""
        if self.ranks == 1:
            return payload
        mine, whole = self.rank == source, FILL
        if mine:
            whole = _packed(0, tree.map_tensors(_on_host, payload), with_skeleton=True)
        size = torch.tensor([len(whole)])
        dist.broadcast(size, source)
        whole = whole if mine else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(whole, source)
        if mine:
            return payload
        found, _ = _unpacked(whole, int(whole[8:16].view(torch.int64)))
        return tree.map_tensors(torch.clone, found)  # kept tensors may be saved one by one

    def from_first(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function only on the first rank, and return its result on every rank."""
        return self.broadcast(function(*arguments) if self.rank == 0 else None)

    def gather(self, payload: Any) -> list[Any]:
        """Return the payloads of all ranks, by rank."""
        return [self.broadcast(payload, rank) for rank in range(self.ranks)]

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over all ranks; `tensor` stays as it is."""
        found = tensor.clone()
        if self.ranks > 1:
            dist.all_reduce(found)
        return found

    def check_equal(self, parts: Mapping[str, Any], *, when: str = "", advice: str) -> None:
        """Compare trees of tensors between all ranks; `when` and `advice` are of the message."""
        if self.ranks == 1:
            return
        own = torch.tensor([fingerprint(part) for part in parts.values()])
        differ = self.total((own != self.broadcast(own)).long())
        if differ.any():
            at = int(differ.nonzero()[0])
            raise RuntimeError(
                f"{when}{int(differ[at])} of {self.ranks} ranks differ from rank 0 in"
                f" {[*parts][at]}: {advice}"
            )


def fingerprint(y: Any) -> int:
    """Return a number that tells batches apart by the bytes of their labels."""
    digest = hashlib.blake2b(digest_size=7)
    for tensor in tree.tensors(y):
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest(), "little")


def _packed(mark: int, payload: Any, *, with_skeleton: bool) -> Tensor:
    """Return a message as bytes."""
    text = io.BytesIO()
    text.write(bytes(ALIGNED))
    if with_skeleton:
        torch.save(tree.map_tensors(lambda own: own.to("meta"), payload), text)
    parts = [torch.frombuffer(text.getbuffer(), dtype=torch.uint8)]
    for own in tree.tensors(payload):
        parts.append(own.as_strided((own.numel(),), (1,)).view(torch.uint8))
    whole = torch.cat([each for part in parts for each in (part, FILL[: -len(part) % ALIGNED])])
    whole[:32].view(torch.int64)[:] = torch.tensor([mark, text.tell() - ALIGNED, len(whole), 0])
    return whole


def _unpacked(whole: Tensor, described: int, skeleton: Any = None) -> tuple[Any, Any]:
    """Return the payload of a message, whose tensors share its memory, and its skeleton."""
    end = ALIGNED + described
    if described:
        text = io.BytesIO(whole[ALIGNED:end].numpy().tobytes())
        skeleton = torch.load(text, weights_only=True)

    def found(own: Tensor) -> Tensor:
        nonlocal end
        start = end + -end % ALIGNED
        end = start + own.nbytes
        made = whole[start:end].view(own.dtype).as_strided(own.shape, own.stride())
        return made.data  # with a version of its own

    return tree.map_tensors(found, skeleton), skeleton


def _on_host(tensor: Tensor) -> Tensor:
    """Return a tensor without gaps; channels that lie innermost stay there, for the same bits."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return tensor if last else tensor.contiguous()


def _tag(place: int, batch: int) -> int:
    return 2 * (batch % BATCHES * PLACES + place)
