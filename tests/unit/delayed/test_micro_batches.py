"""What micro-batches may do beside their order: run again, and count as one batch."""

import pytest
import torch
from torch import nn

from alkit.delayed import train_epoch
from studies.common.ledger import Ledger, counting
from tests.unit.delayed.nets import equal, mlp, outcome, pipeline, trained, vectors

FLUSHED = ["gpipe", "1f1b", "zero_bubble"]


def noisy():
    return mlp(dropout=0.3)


@pytest.mark.parametrize("method", [*FLUSHED, "looped_bfs", "zbv"])
def test_a_forward_that_is_run_again_changes_nothing(method):
    """Dropout is replayed, statistics are counted once."""
    modules = 4 if method in ("looped_bfs", "zbv") else 3
    kept, again = (
        outcome(trained(noisy(), modules, vectors(4), method, micro=4, recompute=own))
        for own in (False, True)
    )
    assert equal(again, kept)


def test_it_is_run_again_where_several_micro_batches_are_in_flight():
    def runs(method, micro):
        calls, blocks = [], mlp(2)
        for at, block in enumerate(blocks):
            block.register_forward_pre_hook(lambda *_, at=at: calls.append(at))
        trained(blocks, 2, vectors(1), method, micro=micro, recompute=True)
        return [calls.count(0), calls.count(1)]

    assert runs("1f1b", 4) == [8, 4]  # the last module has one in flight
    assert runs("gpipe", 4) == [8, 8]
    assert runs("1f1b", 1) == [1, 1]


def test_graphs_of_one_micro_batch_are_kept_at_a_time():
    def most(**own):
        ledgers = [Ledger(), Ledger()]
        blocks = [nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(8)])]
        blocks += [nn.Linear(6, 3)]
        made = pipeline(blocks, 2)
        counting(made, ledgers)
        train_epoch(made, vectors(2), "gpipe", micro=8, **own)
        return ledgers[0].peak

    assert most(recompute=True) < 0.3 * most()


@pytest.mark.parametrize("method", [*FLUSHED, "looped_bfs", "zbv"])
@pytest.mark.parametrize("executor", ["single", "threads"])
def test_a_batch_of_fewer_samples_than_micro_batches_is_a_step_of_its_own(method, executor):
    """Such as the last of an epoch; its texts may be shorter, so it can't join another batch."""

    def made():
        torch.manual_seed(0)
        return [nn.EmbeddingBag(20, 6), *(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in "abc")]

    words = torch.randint(20, (34, 9), generator=torch.Generator().manual_seed(0))
    y = words[:, 0] % 6
    batches = [(words[:16], y[:16]), (words[16:32], y[16:32]), (words[32:, :4], y[32:])]
    modules = 2 if method in FLUSHED else 4
    plain = trained(made(), 2, batches, "1f1b")
    found = trained(made(), modules, batches, method, executor, micro=4)
    assert len(found.losses) == 3
    torch.testing.assert_close(outcome(found)[1:], outcome(plain)[1:], rtol=1e-4, atol=1e-6)
