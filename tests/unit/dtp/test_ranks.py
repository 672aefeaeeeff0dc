"""Layer-parallel training has the bits of one process, whoever runs what; and what goes wrong."""

import copy
import os
import signal

import pytest
import torch

import alkit
from alkit import dtp
from alkit.dtp import assign
from alkit.dtp.feedback import BlockFeedback
from alkit.dtp.fit import digest
from alkit.dtp.settings import Settings
from alkit.engine import checkpoint
from alkit.engine.group import Group, RanksDiffer
from alkit.engine.launch import RankFailed, launch
from studies.dtp import speed as dtp_speed
from tests.unit.dtp.helpers import made_set

SETTINGS = Settings(
    epochs=2, batch=32, iterations=(2, 3, 4), sigma=(0.3, 0.2, 0.08), feedback_lr=(2e-3, 1e-2, 0.3)
)


def trained(ranks=1, owners=None, seed=0, **changes):
    net = dtp.network("tiny", seed=seed)
    own = {"settings": SETTINGS, "ranks": ranks, "owners": owners, "progress": False} | changes
    record = alkit.fit(net, made_set(), **own)
    assert record.details.digest == digest(net)
    return record


@pytest.fixture(scope="module")
def alone():
    return trained()


def test_two_ranks_have_the_bits_of_one_process(alone):
    both = trained(2)
    assert both.details.digest == alone.details.digest
    assert torch.equal(both.losses, alone.losses)
    assert list(both.details.feedback_losses) == [1, 2, 3]
    for n, losses in alone.details.feedback_losses.items():
        assert losses.shape == (6, SETTINGS.iterations[n - 1])
        assert torch.equal(both.details.feedback_losses[n], losses)
    assert torch.equal(both.test_correct, alone.test_correct)
    assert set(both.details.seconds["rank"]) == {0, 1}
    assert sorted(set(both.details.owners)) == [0, 1]
    kinds = {(i.resource, i.kind) for i in both.timeline.intervals}
    assert {("worker 0", "learn"), ("worker 1", "learn"), ("worker 1", "update")} <= kinds


def test_three_ranks_and_any_assignment_have_the_same_bits(alone):
    assert trained(3, [2, 0, 1]).details.digest == alone.details.digest


OTHER = {"feedback_lr": 1e-4, "lr": 1e-3, "sigma": 0.1}


@pytest.mark.parametrize("method", ["vanilla_dtp", "tp", "ddtp"])
def test_other_methods_have_too(method):
    changes = {"method": method} | OTHER
    one = trained(**changes)
    if method == "ddtp":
        with pytest.raises(ValueError, match="ddtp's loops need all later blocks"):
            trained(2, [0, 1, 0], **changes)
        other = trained(executor="threads", **changes)
    else:
        other = trained(2, [1, 1, 0], **changes)
    assert other.details.digest == one.details.digest


@pytest.mark.parametrize("workers", [2, 3])
def test_threads_have_the_bits_of_one(alone, workers):
    found = trained(executor="threads", workers=workers)
    assert found.details.digest == alone.details.digest
    assert len({each.resource for each in found.timeline.intervals}) == workers


def test_other_seeds_and_forms_have_other_bits(alone):
    assert trained(seed=1).details.digest != alone.details.digest
    other = trained(form="autograd")
    torch.testing.assert_close(other.losses, alone.losses, rtol=1e-3, atol=1e-4)
    threads = trained(form="autograd", executor="threads", workers=2)
    assert threads.details.digest == other.details.digest


def test_the_order_of_loops_changes_nothing():
    ends = []
    for order in ((1, 2, 3), (3, 1, 2)):
        net = dtp.network("tiny")
        feedback = BlockFeedback(net, SETTINGS)
        x = made_set().train.x[:32]
        for step in range(3):
            passed = net.locally(x)
            for n in order:
                feedback.learn(n, passed, step)
        ends.append(digest(net))
    assert ends[0] == ends[1]


def _run(net, data):
    own = {"settings": SETTINGS, "owners": [0, 1, 0], "executor": "ranks", "progress": False}
    alkit.fit(net, data, **own)


def _with_own_seed(kind):
    """Train on a rank that has other batches, or other weights, than the others."""
    import torch.distributed as dist

    rank = dist.get_rank()
    net = dtp.network("tiny", seed=rank if kind == "weights" else 0)
    data = made_set()
    if kind == "batches":
        data = made_set(96 + 32 * rank)
    _run(net, data)


@pytest.mark.parametrize(
    ("kind", "words"),
    [("weights", "blocks.0.pieces.0.weight"), ("batches", "batch 0 of rank 0 has other labels")],
)
def test_ranks_that_differ_are_told(kind, words):
    with pytest.raises(RankFailed, match=words):
        launch(_with_own_seed, kind, ranks=2)


def _killed():
    import torch.distributed as dist

    if dist.get_rank() == 1:
        plain = BlockFeedback.learn

        def learn(self, n, passed, step, iterations=None):
            if step == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(self, n, passed, step, iterations)

        BlockFeedback.learn = learn
    _run(dtp.network("tiny"), made_set())


def test_a_rank_that_dies_is_named():
    with pytest.raises(RankFailed, match="rank 1 died of SIGKILL"):
        launch(_killed, ranks=2)


def test_training_goes_on_from_a_checkpoint(tmp_path, monkeypatch, alone):
    """With another number of ranks: momenta are kept, wherever they were."""
    path = tmp_path / "run.pt"

    def fitted(ranks=1, **more):
        options = {"settings": SETTINGS, "checkpoint": path, "progress": False} | more
        return alkit.fit(dtp.network("tiny"), made_set(), ranks=ranks, **options)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", _then_stopped(checkpoint.save))
        with pytest.raises(Stop):
            fitted()
    resumed = fitted(2)
    assert resumed.details.digest == alone.details.digest
    assert torch.equal(resumed.losses, alone.losses)
    assert fitted().details.digest == alone.details.digest  # nothing was left to do
    with pytest.raises(ValueError, match="beta is 0.7 there and 0.5 here"):
        fitted(beta=0.5)
    with pytest.raises(ValueError, match="samples is 1 there and 2 here"):
        fitted(samples=2)  # of noise, whatever the number of training samples
    state = dict(dtp.network("tiny").state_dict())
    checkpoint.save(path, {"net": state, "settings": {}, "progress": {}})
    with pytest.raises(ValueError, match="of another run: .*weight is missing there"):
        fitted()


class Stop(Exception):
    pass


def _then_stopped(save):
    def saved(path, state):
        save(path, state)
        if state["rows"]:
            raise Stop

    return saved


# ---- the time model


def test_longest_first_and_what_does_not_split():
    assert assign.longest_first([1, 5, 3, 3], 2) == [0, 0, 1, 1]
    assert assign.longest_first([1.0, 2.0], 4) == [1, 0]
    with pytest.raises(ValueError, match="workers is 0"):
        assign.longest_first([1.0], 0)
    assert dtp_speed.bound([1.0, 1.0], 2, rest=0.0) == 2
    assert dtp_speed.bound([1.0, 1.0], 2, rest=1.0) == 1.5
    assert dtp_speed.time_of([3.0, 1.0, 1.0], [0, 1, 1], rest=0.5) == 3.5


@pytest.mark.parametrize(
    ("iterations", "unit", "workers", "wanted"),
    [
        ((20, 30, 35, 55, 20), (37.75, 18.87, 9.44, 4.72, 0.005), None, 2.53),
        ((20, 30, 35, 55, 20), (37.75, 18.87, 9.44, 4.72, 0.005), 2, 1.88),
        ((20, 30, 35, 55, 20), (1, 1, 1, 1, 1), None, 2.91),
        ((25, 35, 40, 60, 25), (37.75, 18.87, 9.44, 4.72, 0.5), None, 2.41),
    ],
)
def test_bounds_of_the_published_network(iterations, unit, workers, wanted):
    loads = [k * c for k, c in zip(iterations, unit, strict=True)]
    assert dtp_speed.bound(loads, workers) == pytest.approx(wanted, abs=0.01)


def test_measuring_loads_changes_nothing():
    net = dtp.network("tiny")
    feedback = BlockFeedback(net, SETTINGS)
    passed = net.locally(made_set().train.x[:32])
    feedback.learn(1, passed, 0)
    before = digest(net), copy.deepcopy(feedback.optimizers[1].state_dict())
    loads = assign.measured_loads(feedback, passed)
    assert len(loads) == 3
    assert min(loads) > 0
    assert digest(net) == before[0]
    after = feedback.optimizers[1].state_dict()["state"][0]["momentum_buffer"]
    assert torch.equal(after, before[1]["state"][0]["momentum_buffer"])
    assert not feedback.optimizers[2].state_dict()["state"]


def test_one_process_needs_nobody():
    group = Group()
    assert (group.rank, group.ranks) == (0, 1)
    group.check_equal({"weights": torch.zeros(1)}, advice="")
    assert issubclass(RanksDiffer, RuntimeError)
