"""Cutting, pipelining and distributing change nothing, except where the mathematics says so."""

import pytest
import torch
import torch.nn.functional as F

from alkit.split.pairs import average
from alkit.split.settings import Settings
from alkit.split.stream import Stream
from tests.unit.split.helpers import equal, same_bits, samples, trained, units


def by_hand(sizes, norm="none", **options):
    """FedAvg of ordinary training, written as one would without any of this."""
    options = {"batch": 8, "epochs": 2, "lr": 0.1} | options
    settings = Settings(devices=len(sizes), method="splitfed", **options)
    nets = [torch.nn.Sequential(*units(norm)) for _ in sizes]
    steppers = [torch.optim.SGD(net.parameters(), lr=settings.lr, momentum=0.9) for net in nets]
    losses, steps = {at: [] for at in range(len(sizes))}, [0] * len(sizes)
    for _ in range(settings.epochs):
        for at, (net, stepper) in enumerate(zip(nets, steppers, strict=True)):
            stream = Stream(*samples(sizes[at], at), settings, at)
            for _ in range(0, sizes[at], settings.batch):
                [part] = stream.step(steps[at], 1)
                steps[at] += 1
                loss = F.cross_entropy(net(part.x), part.y)
                losses[at].append(float(loss.detach()))
                stepper.zero_grad()
                loss.backward()
                stepper.step()
        mean = average([net.state_dict() for net in nets], sizes)
        for net in nets:
            net.load_state_dict(mean)
    return mean, {at: torch.tensor(own) for at, own in losses.items()}


ONE, SEVERAL = [20], [20, 12, 9]
AS_BY_HAND = [(ONE, "pipelearn", 2, norm) for norm in ("none", "batch", "group")]
AS_BY_HAND += [(SEVERAL, *each, "none") for each in (("central", 0), ("fed", 4), ("splitfed", 2))]


@pytest.mark.parametrize(("sizes", "method", "cut", "norm"), AS_BY_HAND)
def test_it_is_ordinary_training_and_federated_averaging(sizes, method, cut, norm):
    record = trained(sizes, cut=cut, method=method, norm=norm)
    state, losses = by_hand(sizes, norm)
    assert equal(state, record.state)
    assert equal(losses, record.losses)
    assert {at: sum(own) for at, own in record.rounds[0].sizes.items()} == dict(enumerate(sizes))


@pytest.mark.parametrize("micro", [1, 4])
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_cuts_change_nothing(norm, micro):
    records = [trained([20, 13], cut=cut, micro=micro, norm=norm, dropout=0.5) for cut in range(5)]
    assert all(same_bits(records[0], other) for other in records[1:])


def difference(norm, micro):
    """Return the largest difference of any weight after training with micro-batches."""
    one, other = (trained(micro=n, cut=2, norm=norm, double=True).state for n in (1, micro))
    return max(float((one[key].double() - other[key].double()).abs().max()) for key in one)


@pytest.mark.parametrize("micro", [2, 3, 5, 20])
def test_micro_batches_are_one_batch_but_for_batch_norm(micro):
    """Batches of 8 and a last one of 4: 3 and 5 micro-batches are of unequal sizes."""
    assert difference("none", micro) < 1e-12
    assert difference("group", micro) < 1e-12
    assert difference("batch", micro) > 1e-3


def test_average_rounds_counters_and_keeps_types():
    states = [{"w": torch.tensor([w]).half(), "n": torch.tensor(n)} for w, n in ((1, 3), (2, 6))]
    mean = average(states, [1, 3])
    assert (mean["n"], mean["n"].dtype) == (5, torch.int64)
    assert (mean["w"], mean["w"].dtype) == (1.75, torch.float16)
