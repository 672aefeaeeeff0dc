"""A message between a device and the server as bytes: a JSON head, then safetensors.

    mark, length of the head, sent_s | kind, round, step, micro, values | tensors

Order, limits, encryption and signs of life are gRPC's. Nothing of a message can run code.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
from torch import Tensor

MARK = b"ALK4"  # of the protocol and its version
HEAD = struct.Struct("<4sId")
NUMBER = (int, float)
KINDS: dict[str, dict[str, type | tuple[type, ...]]] = {  # what each says, by type
    "hello": {"device": int, "job": str, "token": str, "saved": list},
    "probe": {},
    "load": {},
    "profile": {"text": str, "arrived_s": NUMBER},
    "welcome": {"settings": dict},
    "start": {"cut": int, "micro": int, "first": int, "last": int, "fresh": bool},
    "act": {},
    "grad": {},
    "done": {"samples": int, "right": int},
    "error": {"text": str},
    "bye": {},
}


class WireError(ValueError):
    """No message of this protocol, or not one that may come now."""


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        kind: of `KINDS`.
        round, step, micro: what it belongs to.
        values: by the names of its kind.
        tensors: by name; weights have the names of the network's state.
        sent_s, arrived_s: on the sender's clock, and on the receiver's.
        size: bytes.
    """

    kind: str
    round: int = 0
    step: int = 0
    micro: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    sent_s: float = 0.0
    arrived_s: float = 0.0
    size: int = 0

    @property
    def place(self) -> tuple[int, int, int]:
        """Round, step and micro-batch."""
        return self.round, self.step, self.micro

    @property
    def name(self) -> str:
        """Say which message this is."""
        return f"{self.kind} of round {self.round}, step {self.step}.{self.micro}"


def encode(message: Message, sent_s: float) -> bytes:
    """Return the bytes of a message that goes out now."""
    head = json.dumps([message.kind, *message.place, dict(message.values)]).encode()
    tensors = {name: own.detach().contiguous() for name, own in message.tensors.items()}
    body = safetensors.torch.save(tensors) if tensors else b""
    return HEAD.pack(MARK, len(head), sent_s) + head + body


def decode(frame: bytes, arrived_s: float = 0.0) -> Message:
    """Return the message of a frame.

    Raises:
        WireError: it is none; says what it is not.
    """
    if frame[: len(MARK)] != MARK:
        raise WireError(f"this is no message of alkit's protocol {MARK.decode()}")
    try:
        _, length, sent_s = HEAD.unpack_from(frame)
        if len(frame) < HEAD.size + length:
            raise WireError(f"no message: {len(frame)} bytes, with a head of {length}")
        kind, at, step, micro, values = json.loads(frame[HEAD.size : HEAD.size + length])
        body = frame[HEAD.size + length :]
        tensors = safetensors.torch.load(body) if body else {}
        message = Message(kind, at, step, micro, values, tensors, sent_s, arrived_s, len(frame))
        _check(message)
    except WireError:
        raise
    except Exception as error:  # what a broken frame raises is of any type
        raise WireError(f"no message: {type(error).__name__}, {error}"[:200]) from error
    return message


def _check(message: Message) -> None:
    if message.kind not in KINDS:
        raise WireError(f"kind is {message.kind!r:.40}: there are {', '.join(KINDS)}")
    if any(type(number) is not int for number in message.place):
        raise WireError(f"round, step and micro-batch are {message.place!r:.80}: whole numbers")
    wanted = KINDS[message.kind]
    if message.values.keys() != wanted.keys():
        told = ", ".join(message.values) or "nothing"
        raise WireError(f"{message.name} says {told:.200}; {', '.join(wanted) or 'nothing'} is due")
    for key, kind in wanted.items():
        if type(message.values[key]) not in (kind if isinstance(kind, tuple) else (kind,)):
            raise WireError(f"{key} of {message.name} is a {type(message.values[key]).__name__}")
