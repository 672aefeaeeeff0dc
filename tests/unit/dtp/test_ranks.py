"""Layer-parallel training has the bits of one process, whoever runs what; and what goes wrong."""

from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import alkit
from alkit import dtp
from alkit.dtp.fit import digest
from alkit.dtp.learning import BlockFeedback, noise_for
from alkit.dtp.trainer import assigned
from alkit.engine import checkpoint
from tests.helpers import on_ranks, refused
from tests.unit.dtp.helpers import made_set

OWN = {"iterations": (2, 3, 4), "sigma": (0.3, 0.2, 0.08), "feedback_lr": (2e-3, 1e-2, 0.3)}
OPTIONS = OWN | {"method": "dtp", "epochs": 2, "batch_size": 32, "progress": False}
SETTINGS = dtp.Settings(**OWN)


def trained(seed=0, **changes):
    net = dtp.network("tiny", seed=seed)
    record = alkit.fit(net, made_set(), **OPTIONS | changes)
    assert record.details.digest == digest(net)
    return record


@pytest.fixture(scope="module")
def alone():
    return trained()


OTHER = {"feedback_lr": 1e-4, "lr": 1e-3, "sigma": 0.1}


def _other_weights(**own):
    return refused(partial(trained, seed=dist.get_rank()), **own)


def _found(owners=None, **own):
    """Return what two runs must agree on, to the bit."""
    with patch("alkit.dtp.trainer.assigned", lambda *given: owners or assigned(*given)):
        return bits(trained(**own))


def bits(record):
    feedback = {n: each.tolist() for n, each in record.details.feedback_losses.items()}
    return record.details.digest, record.losses.tolist(), feedback


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The checkpoint of a run in one process that ended after its first epoch."""
    path, save = tmp_path_factory.mktemp("stopped") / "run.pt", checkpoint.save

    def saved(path, state):
        save(path, state)
        if state["rows"]:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(checkpoint, "save", saved)
        with pytest.raises(KeyboardInterrupt):
            trained(checkpoint=path)
    return path


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The checkpoint of the first of two epochs, which three ranks train."""
    return tmp_path_factory.mktemp("begun") / "run.pt"


@pytest.fixture(scope="module")
def three(stopped, begun):
    """What three ranks find, one run after the other."""
    methods = {
        method: partial(_found, {1: 1, 2: 1, 3: 0}, method=method, **OTHER)
        for method in ("vanilla_dtp", "tp")
    }
    methods |= {
        "any owners": partial(_found, {1: 2, 2: 0, 3: 1}),
        "gone on": partial(_found, checkpoint=stopped),
        "begun": partial(_found, checkpoint=begun, epochs=1),
        "other weights": _other_weights,
    }
    return on_ranks(methods, ranks=3)


def test_two_ranks_have_the_bits_of_one_process(alone):
    both = trained(ranks=2)
    assert bits(both) == bits(alone)
    assert trained(seed=1).details.digest != alone.details.digest
    assert torch.equal(both.test_correct, alone.test_correct)
    kinds = {(i.resource, i.kind) for i in both.timeline.intervals}
    assert {("worker 0", "learn"), ("worker 1", "learn"), ("worker 1", "update")} <= kinds


@pytest.mark.parametrize("name", ["any owners", "gone on", "vanilla_dtp", "tp"])
def test_three_ranks_have_the_same_bits(name, three):
    """Momenta are kept, wherever they were."""
    changes = {"method": name} | OTHER if name in ("vanilla_dtp", "tp") else {}
    assert three[name] == [_found(**changes)] * 3


def test_noise_is_of_the_step_of_the_whole_run():
    with patch("alkit.dtp.learning.noise_for", wraps=noise_for) as drawn:
        trained()
    own = [call.args for call in drawn.call_args_list if call.args[2] == 1]
    assert own == [(0, step, 1) for step in range(6)]


def test_one_process_goes_on_where_three_ranks_ended(three, begun, alone):
    assert bits(trained(checkpoint=begun)) == bits(alone)


@pytest.mark.parametrize("workers", [2, 3])
def test_threads_have_the_bits_of_one(alone, workers):
    found = trained(workers=workers)
    assert bits(found) == bits(alone)
    assert len({each.resource for each in found.timeline.intervals}) == workers


def test_ranks_that_differ_are_told(three):
    assert all("blocks.0.pieces.0.own.weight" in said for said in three["other weights"])


def test_the_longest_loop_goes_first_to_the_one_with_the_least_to_do():
    """By iterations times weights: 3456 x 2 x 2, 13824 x 3 and 1920 x 4."""
    feedback = BlockFeedback(dtp.network("tiny"), SETTINGS)
    assert assigned(feedback, 2) == {1: 1, 2: 0, 3: 1}
    assert assigned(feedback, 4) == {1: 1, 2: 0, 3: 2}
