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
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            _same(one[key], other[key])
    elif isinstance(one, (tuple, list)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            _same(a, b)
    else:
        assert one == other


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
    _same(payload, _sent(payload)[0])


def test_what_the_receiver_has_does_not_travel():
    mask, x = torch.ones(2, 5, dtype=torch.bool), torch.randn(2, 5)
    same_numbers = mask.clone()
    made, tensors = _sent((x * 2, mask.detach(), same_numbers), known=[x, mask])
    assert len(tensors) == 2
    assert made[1] is mask
    view = mask[:, :3]  # the same address, another shape
    assert len(describe((view,), [mask])[1]) == 1


def test_other_things_are_refused():
    with pytest.raises(TypeError, match="Generator cannot be sent between ranks"):
        describe((torch.Generator(),))


def test_fingerprints_tell_labels_apart():
    y = torch.eye(4)
    assert fingerprint(y) == fingerprint(y.clone())
    assert fingerprint(y) != fingerprint(y.flip(0))
    assert 0 <= fingerprint(Codes(y, torch.arange(4))) < 2**62
