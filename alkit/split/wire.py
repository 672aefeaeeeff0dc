"""Messages between a device and the server as bytes, and back, without trusting whoever sent them.

    magic version kind | number round step micro | sent_s | lengths | crc     52 bytes, fixed
    values      JSON: only the names and types that the kind allows
    tensors     safetensors: types, shapes and raw little-endian numbers

Nothing of it can run code, and no length is believed before it has been compared with a limit.
"""

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

__all__ = [
    "KINDS",
    "STATE",
    "Assembler",
    "Message",
    "WireError",
    "as_weights",
    "decode",
    "encode",
    "stamped",
]

MAGIC, VERSION = b"ALKS", 3
HEADER = struct.Struct("<4sHBxIIIIdIQI4x")
SENT_AT = struct.calcsize("<4sHBxIIII")
MOST_VALUES = 1 << 16  # bytes of JSON
STATE = "state."  # marks the tensors of a message that are weights
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DTYPES = (*FLOATS, torch.uint8, torch.int32, torch.int64, torch.bool)

# what each kind may carry: values by type, and whether tensors are allowed
_NUMBER = (int, float)
_HELLO = {"job": str, "network": str, "saved": list}
_ANEW = {"fresh": bool, "resume": bool}
_SCHEMA: dict[str, tuple[dict[str, Any], bool]] = {
    "hello": (dict.fromkeys(("device", "round", "step"), int) | _HELLO, False),
    "welcome": ({"job": dict, "probes": int, "profile": int}, False),
    "probe": ({}, True),
    "probe_reply": ({"t1": _NUMBER, "t2": _NUMBER}, True),
    "clock": ({"offset_s": _NUMBER}, False),
    "load": ({}, True),
    "profile": ({"text": str, "down_bps": _NUMBER}, False),
    "start": (dict.fromkeys(("cut", "micro", "first", "last", "step"), int) | _ANEW, True),
    "act": ({"share": _NUMBER}, True),
    "grad": ({}, True),
    "done": ({"samples": int, "loss": _NUMBER, "right": int}, True),
    "error": ({"text": str}, False),
    "bye": ({}, True),
    "heartbeat": ({}, False),
}
KINDS = tuple(_SCHEMA)


class WireError(ValueError):
    """Bytes that are no message of this protocol, or not one that may come now."""


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        kind: of `KINDS`.
        round, step, micro: what it belongs to.
        values: by the names of its kind.
        tensors: by name.
        number: position in its stream, from 0; set by the channel.
        sent_s: on the sender's clock, when its first byte went to the system.
        first_s, arrived_s: on the receiver's, when its first and last byte had come.
        size: bytes.
    """

    kind: str
    round: int = 0
    step: int = 0
    micro: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    number: int = 0
    sent_s: float = 0.0
    first_s: float = 0.0
    arrived_s: float = 0.0
    size: int = 0

    @property
    def name(self) -> str:
        """Say which message this is."""
        return f"{self.kind} of round {self.round}, step {self.step}.{self.micro}"

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights that it carries, see `as_weights`."""
        marked = (name for name in self.tensors if name.startswith(STATE))
        return {name.removeprefix(STATE): self.tensors[name] for name in marked}


def as_weights(state: Mapping[str, Tensor], cut: int | None = None) -> dict[str, Tensor]:
    """Name the weights of the first `cut` units, by default of all, as messages carry them."""
    return {
        STATE + name: tensor
        for name, tensor in state.items()
        if cut is None or int(name.partition(".")[0]) < cut
    }


def encode(message: Message) -> bytes:
    """Return the bytes of a message.

    Raises:
        WireError: values or tensors that the kind does not allow.
    """
    _check(message)
    values = json.dumps(dict(message.values), separators=(",", ":")).encode()
    if len(values) > MOST_VALUES:
        raise WireError(f"{message.name} has {len(values)} bytes of values, at most {MOST_VALUES}")
    tensors = {key: tensor.detach().contiguous() for key, tensor in message.tensors.items()}
    payload = safetensors.torch.save(tensors) if tensors else b""
    body = values + payload
    kind = KINDS.index(message.kind)
    places = message.number, message.round, message.step, message.micro
    lengths = len(values), len(payload), zlib.crc32(body)
    return HEADER.pack(MAGIC, VERSION, kind, *places, message.sent_s, *lengths) + body


def stamped(frame: bytes, sent_s: float) -> bytes:
    """Return the frame with the time at which it went out, which the check sum leaves out."""
    return frame[:SENT_AT] + struct.pack("<d", sent_s) + frame[SENT_AT + 8 :]


def decode(frame: bytes, limit: int) -> Message:
    """Return the message of a whole frame.

    Args:
        limit: bytes that a message may have.
    Raises:
        WireError: anything else than a message of this version; says what.
    """
    length = frame_length(frame, limit)
    if len(frame) != length:
        raise WireError(f"a frame of {len(frame)} bytes says that it has {length}")
    header = HEADER.unpack(frame[: HEADER.size])
    _, _, kind, number, at, step, micro, sent_s, before, _, crc = header
    body = memoryview(frame)[HEADER.size :]
    if zlib.crc32(body) != crc:
        raise WireError("the check sum is wrong: bytes were changed on the way")
    values, tensors = _read_values(bytes(body[:before])), _read_tensors(bytes(body[before:]))
    message = Message(KINDS[kind], at, step, micro, values, tensors, number, sent_s, size=length)
    _check(message)
    return message


def frame_length(start: bytes, limit: int) -> int:
    """Return the length of the frame that begins with these bytes, a fixed header at least.

    Raises:
        WireError: no frame of this protocol, or one above the limit.
    """
    if len(start) < HEADER.size:
        raise WireError(f"{len(start)} bytes are too few for a header of {HEADER.size}")
    magic, version, kind, *_, values, payload, _ = HEADER.unpack(start[: HEADER.size])
    if magic != MAGIC:
        raise WireError("this is no message of alkit")
    if version != VERSION:
        raise WireError(f"a message of version {version}; this side speaks version {VERSION}")
    if kind >= len(KINDS):
        raise WireError(f"kind {kind} is unknown: there are {len(KINDS)}")
    length = HEADER.size + values + payload
    if values > MOST_VALUES or length > limit:
        raise WireError(f"a message of {length} bytes; at most {limit} are allowed")
    return length


class Assembler:
    """Puts the pieces of a stream together to frames.

    Args:
        limit: bytes that a message may have; never more are held.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = bytearray()
        self.length: int | None = None
        self.first_s = 0.0

    def feed(self, piece: bytes, now_s: float) -> Iterator[Message]:
        """Take a piece, and yield the messages that it completes.

        Raises:
            WireError: see `decode`.
        """
        if not self.held:
            self.first_s = now_s
        self.held += piece
        while True:
            if self.length is None and len(self.held) >= HEADER.size:
                self.length = frame_length(bytes(self.held[: HEADER.size]), self.limit)
            if self.length is None or len(self.held) < self.length:
                return
            frame = bytes(self.held[: self.length])
            del self.held[: self.length]
            self.length = None
            message = decode(frame, self.limit)
            yield replace(message, first_s=self.first_s, arrived_s=now_s)
            self.first_s = now_s


def _read_values(written: bytes) -> dict[str, Any]:
    try:
        values = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the values are no JSON: {type(error).__name__}") from error
    if not isinstance(values, dict):
        raise WireError("the values are no JSON object")
    return values


def _read_tensors(payload: bytes) -> dict[str, Tensor]:
    if not payload:
        return {}
    try:
        return safetensors.torch.load(payload)
    except Exception as error:  # what a broken file raises is of any type
        raise WireError(f"the tensors are no safetensors: {str(error)[:200]}") from error


def _check(message: Message) -> None:
    if message.kind not in _SCHEMA:
        raise WireError(f"kind is {message.kind!r}: give {', '.join(KINDS)}")
    allowed, with_tensors = _SCHEMA[message.kind]
    for key, value in message.values.items():
        if key not in allowed:
            raise WireError(f"{message.kind} has no value {key!r}: {', '.join(allowed) or 'none'}")
        right = isinstance(value, allowed[key])
        if not right or (isinstance(value, bool) and allowed[key] is not bool):
            raise WireError(f"{key} of {message.kind} is a {type(value).__name__}")
    if missing := [key for key in allowed if key not in message.values]:
        raise WireError(f"{message.kind} lacks {', '.join(missing)}")
    if message.tensors and not with_tensors:
        raise WireError(f"{message.kind} carries no tensors")
    for key, tensor in message.tensors.items():
        if tensor.dtype not in DTYPES:
            raise WireError(f"{key} of {message.kind} is {tensor.dtype}, which does not travel")
