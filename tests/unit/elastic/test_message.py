"""The control message: what goes in comes out, and what is odd is refused."""

import json

import pytest

from alkit.elastic.message import MessageError, Transform

MESSAGE = Transform(2, 2, 320, 20_480, 7, [5], 15, 2, 1, 64, 1.0, True, 2, [0.5] * 12)


def test_round_trip_through_json():
    assert Transform.read(json.loads(json.dumps(MESSAGE.plain()))) == MESSAGE


def test_a_large_cluster_fits():
    """24 layers and 64 ranks overflow the published 50 floats."""
    large = Transform(9, 9, 9, 9, 20, [6], 41, 64, 4, 4096, 1.0, True, 5, [0.1] * 24)
    assert Transform.read(large.plain()).ranks == 64


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "of version 2; this is version 1"),
        ({"frozen": -1}, "frozen is -1"),
        ({"replicas": 0}, "replicas is 0"),
        ({"batch": 1.5}, "batch is 1.5"),
        ({"counts": []}, "give units of each stage"),
        ({"more": 1}, "other fields than this one's: more"),
    ],
)
def test_what_is_odd_is_refused(changes, said):
    with pytest.raises(MessageError, match=said):
        Transform.read(MESSAGE.plain() | changes)


def test_the_line_names_what_changed():
    before = Transform(1, 1, 160, 10_240, 4, [9, 8], 9, 1, 16, 64, 1.0, True, 1, [])
    line = MESSAGE.line(before, 12)
    assert line.startswith("[epoch 2 step 320] TRANSFORM frozen 4->7/12  pipeline 2->1")
    assert "replicas 1->2" in line
    assert "micro-batches 16->1  batch 64" in line
    three = Transform(1, 1, 1, 1, 4, [9], 9, 4, 16, 64, 1.0, True, 1, [])
    assert "(+ranks 2,3)" in three.line(before, 12)
