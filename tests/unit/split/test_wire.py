"""Whatever bytes come: a message or `WireError`; nothing is run."""

import json
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alkit.split.wire import HEAD, KINDS, MARK, Message, WireError, decode, encode


def act(**changes) -> Message:
    tensors = {"x": torch.randn(3, 2), "y": torch.tensor([0, 1, 2])}
    return Message("act", 1, 2, 3, **{"tensors": tensors} | changes)


def frame(head=("act", 0, 0, 0, {}), payload=b"", mark=MARK, length=None):
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return HEAD.pack(mark, len(text) if length is None else length, 0.0) + text + payload


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
def test_round_trip(dtype):
    x = torch.tensor([[0.0, 1.0], [2.0, 3.0]]).to(dtype)
    again = decode(encode(act(tensors={"x": x, "y": torch.tensor([1, 2])}), 2.5), 3.5)
    assert torch.equal(again.tensors["x"], x)
    assert again.tensors["x"].dtype == dtype
    assert (again.kind, again.place) == ("act", (1, 2, 3))
    assert (again.sent_s, again.arrived_s) == (2.5, 3.5)


START = {"cut": 1, "micro": 1, "first": 0, "last": 1, "fresh": True}


@pytest.mark.parametrize(
    ("bytes_", "words"),
    [
        (b"", "no message of alkit"),
        (frame(mark=b"HTTP"), "no message of alkit"),
        (frame(mark=b"ALK5"), "protocol ALK4"),
        (frame()[:9], "no message"),
        (frame(("exec", 0, 0, 0, {})), "kind is 'exec'"),
        (frame(b"{"), "no message"),
        (frame(b"[" * 60_000), "no message"),
        (frame(["act", 0, 0, 0]), "no message"),
        (frame(("act", 0, 0, 0.5, {})), "whole numbers"),
        (frame(("act", 0, 0, True, {})), "whole numbers"),
        (frame(("act", 0, 0, 0, {"code": "x"})), "says code; nothing is due"),
        (frame(("start", 0, 0, 0, {})), "says nothing; cut, micro"),
        (frame(("start", 0, 0, 0, START | {"cut": "1"})), "cut of start .* is a str"),
        (frame(("start", 0, 0, 0, START | {"cut": True})), "cut of start .* is a bool"),
        (frame(payload=b"\xff" * 64), "no message"),
        (frame(payload=pickle.dumps([1, 2, 3])), "no message"),
        (frame(length=(1 << 32) - 1), "no message"),
    ],
)
def test_bad_frames_are_refused(bytes_, words):
    with pytest.raises(WireError, match=words):
        decode(bytes_)


def test_a_pickle_is_not_even_looked_at():
    class Harm:
        def __reduce__(self):
            return (pytest.fail, ("it was executed",))

    for bytes_ in (frame(payload=pickle.dumps(Harm())), frame(pickle.dumps(Harm()))):
        with pytest.raises(WireError):
            decode(bytes_)


def _mutated(data: st.DataObject) -> bytes:
    bytes_ = bytearray(encode(act(), 0.0))
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
    return bytes(bytes_)


def check_mutated(data):
    try:
        message = decode(_mutated(data))
    except WireError:
        return
    assert message.kind in KINDS


@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_mutated_frames(data):
    check_mutated(data)


@pytest.mark.soak
@settings(max_examples=100_000, deadline=None)
@given(st.data())
def test_many_mutated_frames(data):
    check_mutated(data)
