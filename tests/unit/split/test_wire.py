"""Whatever bytes come: a message or `WireError`; little is held and nothing is run."""

import pickle
import struct
import tracemalloc
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alkit.split.wire import (
    HEADER,
    KINDS,
    MAGIC,
    VERSION,
    Assembler,
    Message,
    WireError,
    decode,
    encode,
    stamped,
)

LIMIT = 1 << 20


def act(**changes) -> Message:
    tensors = {"x": torch.randn(3, 2), "y": torch.tensor([0, 1, 2])}
    values = {"share": 0.5}
    return Message("act", 1, 2, 3, **{"values": values, "tensors": tensors} | changes)


def frame(
    kind: int = KINDS.index("act"),
    values: bytes = b'{"share":1}',
    payload: bytes = b"",
    magic: bytes = MAGIC,
    version: int = VERSION,
    crc: int | None = None,
    lengths: tuple[int, int] | None = None,
) -> bytes:
    body = values + payload
    sizes = lengths or (len(values), len(payload))
    crc = zlib.crc32(body) if crc is None else crc
    return HEADER.pack(magic, version, kind, 0, 0, 0, 0, 0.0, *sizes, crc) + body


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
def test_round_trip(dtype):
    x = torch.tensor([[0.0, 1.0], [2.0, 3.0]]).to(dtype)
    message = act(tensors={"x": x, "y": torch.tensor([1, 2])})
    again = decode(stamped(encode(message), 2.5), LIMIT)
    assert torch.equal(again.tensors["x"], x)
    assert again.tensors["x"].dtype == dtype
    assert again.values == {"share": 0.5}
    assert again.sent_s == 2.5
    assert (again.kind, again.round, again.step, again.micro) == ("act", 1, 2, 3)


@pytest.mark.parametrize(
    ("bytes_", "words"),
    [
        (b"", "too few"),
        (frame(magic=b"HTTP"), "no message of alkit"),
        (frame(version=VERSION + 1), f"version {VERSION + 1}"),
        (frame(kind=200), "kind 200"),
        (frame(payload=b"x" * 8, crc=1), "check sum"),
        (frame(values=b"{"), "no JSON"),
        (frame(values=b"[" * 60_000), "no JSON"),
        (frame(values=b"[1]"), "no JSON object"),
        (frame(values=b'{"share":"a"}'), "share of act is a str"),
        (frame(values=b'{"share":true}'), "bool"),
        (frame(values=b'{"share":1,"code":"x"}'), "no value 'code'"),
        (frame(values=b"{}"), "lacks share"),
        (frame(payload=b"\xff" * 64), "no safetensors"),
        (frame(payload=pickle.dumps([1, 2, 3])), "no safetensors"),
        (frame(payload=b"x")[:-1], "says that it has"),
    ],
)
def test_bad_frames_are_refused(bytes_, words):
    with pytest.raises(WireError, match=words):
        decode(bytes_, LIMIT)


def test_a_pickle_is_not_even_looked_at():
    class Harm:
        def __reduce__(self):
            return (pytest.fail, ("it was executed",))

    for where in ({"payload": pickle.dumps(Harm())}, {"values": pickle.dumps(Harm())}):
        with pytest.raises(WireError):
            decode(frame(**where), LIMIT)


@pytest.mark.parametrize("lengths", [((1 << 32) - 1, 0), (11, (1 << 63) - 1)])
def test_a_length_is_not_believed(lengths):
    assembler = Assembler(LIMIT)
    tracemalloc.start()
    with pytest.raises(WireError, match="at most"):
        list(assembler.feed(frame(lengths=lengths), 0.0))
    assert tracemalloc.get_traced_memory()[1] < LIMIT
    tracemalloc.stop()


def test_what_a_kind_does_not_carry_is_not_sent():
    with pytest.raises(WireError, match="carries no tensors"):
        encode(Message("error", values={"text": "no"}, tensors={"x": torch.zeros(1)}))
    with pytest.raises(WireError, match="does not travel"):
        encode(act(tensors={"x": torch.zeros(1, dtype=torch.complex64)}))
    with pytest.raises(WireError, match="kind is"):
        encode(Message("exec"))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 700), min_size=1, max_size=60))
def test_pieces_of_any_size_come_together(sizes):
    frames = [encode(act(tensors={"x": torch.randn(n, 4)})) for n in (1, 9, 30)]
    stream, at, found = b"".join(frames), 0, []
    assembler = Assembler(LIMIT)
    for size in [*sizes, len(stream)]:
        found += assembler.feed(stream[at : at + size], 1.0)
        at += size
    assert [len(message.tensors["x"]) for message in found] == [1, 9, 30]
    assert not assembler.held


def _mutated(data: st.DataObject) -> bytes:
    bytes_ = bytearray(encode(act()))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(bytes_) - 1))
        way = data.draw(st.sampled_from(("set", "cut", "insert")))
        if way == "set":
            bytes_[place] = data.draw(st.integers(0, 255))
        elif way == "cut":
            del bytes_[place : place + data.draw(st.integers(1, 40))]
        else:
            bytes_[place:place] = data.draw(st.binary(max_size=40))
        if not bytes_:
            return b""
    if data.draw(st.booleans()) and len(bytes_) >= HEADER.size:
        # a right check sum lets the changes through to the readers behind it
        struct.pack_into("<I", bytes_, HEADER.size - 8, zlib.crc32(bytes_[HEADER.size :]))
    return bytes(bytes_)


@settings(max_examples=1500, deadline=None)
@given(st.data())
def test_mutated_frames(data):
    try:
        message = decode(_mutated(data), LIMIT)
    except WireError:
        return
    assert message.kind in KINDS
    assert message.size <= LIMIT


@pytest.mark.soak
@settings(max_examples=100_000, deadline=None)
@given(st.data())
def test_many_mutated_frames(data):
    try:
        decode(_mutated(data), LIMIT)
    except WireError:
        pass
