"""What travels between ranks comes as it was sent: types, shapes, layouts, and in its order."""

import torch
import torch.distributed as dist

from alkit import launch
from alkit.al.codes import Codes
from alkit.engine.messages import END, Group, Receiver, Sender

PAYLOADS = [
    torch.randn(3, 4),
    (torch.randn(2, 3), torch.tensor([True, False])),
    ((torch.randn(1), [torch.zeros(0, 3), None]), Codes(torch.eye(2), torch.tensor([0, 1, 1]))),
    {"state": {0: {"step": torch.tensor(3.0)}}, "groups": [{"lr": 1e-3, "betas": (0.9, 0.99)}]},
    [1, 2.5, "x", True, None],
    torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    torch.randn(4, 6)[:, ::2],
    torch.randn(3, dtype=torch.complex64).conj(),
    torch.randn(5).bfloat16(),
]
LAG, ROWS = 2, [4, 4, 4, 1, 9, 9, 3, 3, 5, 12, 2]


def _same(one, other):
    """Whether two nests of containers hold equal things of the same types."""
    if isinstance(one, torch.Tensor):
        layout = one.stride() == other.stride() if one.dim() == 4 else True
        return one.dtype == other.dtype and layout and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if type(one) is type(other) and isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and one == other


def _passed_on(payloads):
    """Send and broadcast from rank 0; taken in another order, and asked for ahead, in between."""
    if dist.get_rank() == 0:
        sender = Sender(1, lag=LAG, room=len(payloads))
        for place, payload in enumerate(payloads):
            sender.send(place, 0, 7, payload)
        for batch, rows in enumerate(ROWS, 1):
            sender.send(0, batch, 0, torch.full((rows, 3), float(batch)))
        sender.send(0, len(ROWS) + 1, END, None)
        sender.settle()
        return [Group().broadcast(payload) for payload in payloads]
    receiver = Receiver(0, lag=LAG)
    for place in range(len(payloads)):
        receiver.ask(place, 0)
    found = [receiver.take(place, 0).payload for place in reversed(range(len(payloads)))][::-1]
    for batch in range(1, len(ROWS) + 2):
        receiver.ask(0, batch)
    for batch, rows in enumerate(ROWS, 1):
        # how much of a later one fits isn't known yet
        assert [*receiver.asked] == [(0, at) for at in (batch, batch + 1) if at <= len(ROWS) + 1]
        message = receiver.take(0, batch)
        assert message[:3] == (0, batch, 0)
        assert torch.equal(message.payload, torch.full((rows, 3), float(batch)))
    assert receiver.take(0, len(ROWS) + 1).mark == END
    assert _same(found, payloads)
    return [Group().broadcast(None) for payload in payloads]


def test_all_comes_as_it_was_sent():
    _, found = launch(_passed_on, PAYLOADS)
    assert _same(found, PAYLOADS)
