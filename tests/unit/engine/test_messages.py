"""What travels between ranks: taken apart and put together again, and only what must travel."""

import json

import pytest
import torch

from alkit.al.codes import Codes
from alkit.engine.messages import describe, fingerprint, rebuild


def _sent(payload, known=()):
    description, tensors = describe(payload, known)
    return rebuild(json.loads(json.dumps(description)), tensors, known), tensors


def _same(one, other):
    """Whether two nests of containers hold equal things of the same types."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if type(one) is type(other) and isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize(
    "payload",
    [
        torch.randn(3, 4),
        (torch.randn(2, 3), torch.tensor([True, False])),
        ((torch.randn(1), [torch.zeros(0, 3), None]), Codes(torch.eye(2), torch.tensor([0, 1, 1]))),
        {"state": {0: {"step": torch.tensor(3.0)}}, "groups": [{"lr": 1e-3, "betas": (0.9, 0.99)}]},
        [1, 2.5, "x", True, None],
    ],
)
def test_round_trip(payload):
    assert _same(payload, _sent(payload)[0])


def test_what_the_receiver_has_does_not_travel():
    mask, x = torch.ones(2, 5, dtype=torch.bool), torch.randn(2, 5)
    made, tensors = _sent((x * 2, mask.detach(), mask.clone()), known=[x, mask])
    assert len(tensors) == 2
    assert made[1] is mask
    assert len(describe((mask[:, :3],), [mask])[1]) == 1  # the same address, another shape
    with pytest.raises(TypeError, match="Generator cannot be sent between ranks"):
        describe((torch.Generator(),))


def test_fingerprints_tell_labels_apart():
    y = torch.eye(4)
    assert fingerprint(y) == fingerprint(y.clone())
    assert fingerprint(y) != fingerprint(y.flip(0))
    assert 0 <= fingerprint(Codes(y, torch.arange(4))) < 2**62
