"""Hand trees of tensors from one rank to another over torch.distributed, in order.

    rank 0   send(payload, batch)  -->  header, [description], tensor, tensor, ...  -->  rank 1

The description (structure, types, shapes) travels when it has changed; a steady stream costs one
short header. What the other rank has anyway does not travel: tensors of the batch itself (masks,
labels), which every rank loads, are named in the description and taken from the receiver's own
copy. Nothing is pickled. gloo sends from the host's memory, so what is on a device goes through it,
and who takes it moves it to where it is worked on; what is in host memory is not copied.
"""

import hashlib
import itertools
import json
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from alkit.data import tree

END = -1  # batch number of the message that closes a stream
HEADER = 4  # batch, micro-batch, fingerprint of the labels, bytes of the description (0: as before)
TYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
    )
}


SENDABLE: dict[str, type] = {}


def sendable(kind: type) -> type:
    """Let a named tuple travel between ranks as what it is; a decorator of its class."""
    SENDABLE[kind.__name__] = kind
    return kind


class Message(NamedTuple):
    """What an inbox gives: the payload of a task's output."""

    batch: int
    micro: int
    payload: Any


def describe(payload: Any, known: Sequence[Tensor] = ()) -> tuple[Any, list[Tensor]]:
    """Return a description that JSON can hold, and the tensors that must travel.

    Args:
        payload: tensors in nested tuples, lists, dicts and what is `sendable`; numbers, strings
            and None pass.
        known: tensors that the receiver has, in this order.
    Raises:
        TypeError: something else stands in the payload.
    """
    places = {_identity(tensor): at for at, tensor in reversed(list(enumerate(known)))}
    travelling: list[Tensor] = []

    def walk(branch: Any) -> Any:
        if isinstance(branch, Tensor):
            if (at := places.get(_identity(branch))) is not None:
                return ["known", at]
            order = ["last"] if _is_channels_last(branch) else []
            travelling.append(branch.permute(0, 2, 3, 1) if order else branch)
            kind = str(branch.dtype).removeprefix("torch.")
            return ["tensor", kind, list(travelling[-1].shape), *order]
        if type(branch) in SENDABLE.values():
            return [type(branch).__name__, *map(walk, branch)]
        if type(branch) in (tuple, list):
            return [type(branch).__name__, *map(walk, branch)]
        if type(branch) is dict:
            return ["dict", *([key, walk(value)] for key, value in branch.items())]
        if branch is None or isinstance(branch, (bool, int, float, str)):
            return ["plain", branch]
        raise TypeError(
            f"{type(branch).__name__} cannot be sent between ranks: tensors, tuples, lists,"
            " dicts, numbers and strings can"
        )

    return walk(payload), travelling


def rebuild(description: Any, tensors: Sequence[Tensor], known: Sequence[Tensor] = ()) -> Any:
    """Return the payload that `describe` took apart."""
    waiting = deque(tensors)

    def walk(branch: Any) -> Any:
        kind, *rest = branch
        if kind == "tensor":
            taken = waiting.popleft()
            return taken.permute(0, 3, 1, 2) if rest[-1] == "last" else taken
        if kind == "known":
            return known[rest[0]]
        if kind == "dict":
            return {key: walk(value) for key, value in rest}
        if kind == "plain":
            return rest[0]
        made = (walk(each) for each in rest)
        if kind in SENDABLE:
            return SENDABLE[kind](*made)
        return tuple(made) if kind == "tuple" else list(made)

    return walk(description)


class Outbox:
    """A stream of messages to another rank.

    Args:
        peer: its rank.
        capacity: messages that it may not have taken yet; `send` waits for room.
        stream: number of this stream among those between the two ranks.
    """

    def __init__(self, peer: int, capacity: int = 2, stream: int = 0) -> None:
        self.peer, self.capacity = peer, capacity
        self.tags = _tags(stream)
        self.pending: deque[list[tuple[dist.Work, Tensor]]] = deque()
        self.described = ""

    def send(
        self, batch: int, micro: int, payload: Any, known: Sequence[Tensor] = (), mark: int = 0
    ) -> None:
        """Send, and return when at most `capacity` messages are on their way.

        Args:
            known: tensors that the peer has, see `describe`.
            mark: a fingerprint of the batch, which the peer compares with its own.
        """
        description, tensors = describe(payload, known)
        text = json.dumps(description)
        written = b"" if text == self.described else text.encode()
        self.described = text
        header = torch.tensor([batch, micro, mark, len(written)])
        body = [_bytes(written)] if written else []
        # a tensor must live until it has been taken: what is sent is kept beside the work
        parts = [header, *body, *map(_on_host, tensors)]
        works = [(dist.isend(p, self.peer, tag=next(self.tags)), p) for p in parts]
        # only a process outside the group has none
        self.pending.append([(work, part) for work, part in works if work is not None])
        self._wait(self.capacity)

    def close(self) -> None:
        """Say that no message follows, and wait until all have been taken."""
        self.send(END, 0, None)
        self._wait(0)

    def _wait(self, room: int) -> None:
        while len(self.pending) > room:
            for work, _ in self.pending.popleft():
                work.wait()


class Inbox:
    """A stream of messages from another rank, received ahead on a thread of its own.

    Args:
        peer: its rank.
        known: gives the tensors of a batch that this rank has itself, see `describe`, and a
            fingerprint of them; called with the batch's number, on the caller's thread.
        capacity: messages to hold.
    """

    def __init__(
        self,
        peer: int,
        known: Callable[[int], tuple[Sequence[Tensor], int]] = lambda batch: ((), 0),
        capacity: int = 2,
        stream: int = 0,
    ) -> None:
        self.peer, self.known, self.tags = peer, known, _tags(stream)
        self.held: queue.Queue[Any] = queue.Queue(capacity)
        threading.Thread(target=self._receive, daemon=True, name=f"alkit-inbox-{peer}").start()

    def take(self) -> Message | None:
        """Wait for the next message; None when the stream has been closed.

        Raises:
            ValueError: the peer's batch is another one than this rank's.
            Exception: what the receiving thread met, such as a peer that has gone.
        """
        found = self.held.get()
        if isinstance(found, BaseException):
            raise found
        (batch, micro, mark), description, tensors = found
        if batch == END:
            return None
        known, own_mark = self.known(batch)
        if mark != own_mark:
            raise ValueError(
                f"batch {batch} of rank {self.peer} has other labels than that of rank"
                f" {dist.get_rank()}: give every rank the same batches, in the same order"
            )
        return Message(batch, micro, rebuild(description, tensors, known))

    def _receive(self) -> None:
        description: Any = None
        try:
            while True:
                batch, micro, mark, size = self._tensor(torch.int64, [HEADER]).tolist()
                if size:
                    description = json.loads(bytes(self._tensor(torch.uint8, [size]).tolist()))
                tensors = [self._tensor(kind, shape) for kind, shape in _shapes(description)]
                self.held.put(((batch, micro, mark), description, tensors))
                if batch == END:
                    return
        except BaseException as error:  # whatever it is, the one who takes raises it
            self.held.put(error)

    def _tensor(self, kind: torch.dtype, shape: Sequence[int]) -> Tensor:
        made = torch.empty(shape, dtype=kind)
        dist.recv(made, self.peer, tag=next(self.tags))
        return made


def broadcast(payload: Any, source: int) -> Any:
    """Return on every rank what rank `source` gives; the others' payload is not looked at."""
    mine = dist.get_rank() == source
    description, tensors = describe(payload) if mine else (None, [])
    written = _bytes(json.dumps(description).encode())
    size = torch.tensor([len(written)])
    dist.broadcast(size, source)
    if not mine:
        written = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(written, source)
    if mine:
        for tensor in tensors:
            dist.broadcast(_on_host(tensor), source)
        return payload
    description = json.loads(bytes(written.tolist()))
    tensors = [torch.empty(shape, dtype=kind) for kind, shape in _shapes(description)]
    for tensor in tensors:
        dist.broadcast(tensor, source)
    return rebuild(description, tensors)


def fingerprint(y: Any) -> int:
    """Return a number that tells batches apart by the bytes of their labels."""
    digest = hashlib.blake2b(digest_size=7)
    for tensor in tree.tensors(y):
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest(), "little")


def _shapes(description: Any) -> list[tuple[torch.dtype, list[int]]]:
    """Return type and shape of the tensors that travel, in order."""
    kind, *rest = description
    if kind == "tensor":
        return [(TYPES[rest[0]], rest[1])]
    if kind in ("known", "plain"):
        return []
    branches = (value for _, value in rest) if kind == "dict" else rest
    return [each for branch in branches for each in _shapes(branch)]


def _is_channels_last(tensor: Tensor) -> bool:
    """Whether channels lie next to each other in memory: kept, or the receiver would reorder."""
    last = torch.channels_last
    return (
        tensor.dim() == 4
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=last)
    )


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.contiguous().cpu()


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _tags(stream: int) -> Iterator[int]:
    """Number the tensors of a stream, so that each is matched with its own."""
    return (stream << 20 | at for at in itertools.cycle(range(1 << 20)))


def _bytes(written: bytes) -> Tensor:
    return torch.frombuffer(bytearray(written), dtype=torch.uint8)
