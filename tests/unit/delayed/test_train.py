"""The calls that users make: what they return, and what they refuse."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit import delayed
from alkit.delayed import Pipeline, even_cuts, train_epoch
from alkit.engine.ledger import Ledger
from tests.unit.delayed.nets import bits, mlp, momentum, pipeline, same, trained, vectors


def test_it_is_found_where_alkit_is():
    import alkit

    assert alkit.delayed.train is delayed.train
    assert "delayed" in dir(alkit)


def test_train_in_one_call():
    blocks = mlp()
    record = delayed.train(blocks, F.cross_entropy, vectors(30), method="ddg", cuts=[2, 4])
    assert record.losses.shape == (30,)
    assert record.losses[-5:].mean() < record.losses[:5].mean()
    assert record.samples == 240
    assert record.timeline.span_s <= record.seconds
    assert blocks[0] is record.pipeline[0].blocks[0], "blocks are trained in place"
    again = train_epoch(record.pipeline, vectors(2), "pipedream")
    assert int(again.pipeline.batches_trained) == 32


def test_the_rate_follows_the_number_of_the_batch():
    seen = []

    class Told(torch.optim.SGD):
        def step(self):
            seen.append(self.param_groups[0]["lr"])

    made = pipeline(mlp(), 2, lambda p: Told(p, lr=0.5), rates=[2.0, 1.0])
    for _ in range(2):
        train_epoch(made, vectors(3), "seq", rate=lambda batch: 1 / (1 + batch))
    expected = [[1.0 / (1 + m), 0.5 / (1 + m)] for m in range(6)]
    assert seen == [rate for pair in expected for rate in pair]


def test_each_tensor_is_clipped_by_its_own_norm():
    norms = []

    class Told(torch.optim.SGD):
        def step(self):
            norms.extend(p.grad.norm().item() for g in self.param_groups for p in g["params"])

    train_epoch(pipeline(mlp(), 2, lambda p: Told(p, lr=0.1)), vectors(3), "ddg", clip=1e-3)
    assert max(norms) <= 1e-3 * (1 + 1e-4)


@pytest.mark.parametrize(("where", "moves"), [("play", 12), ("replay", 12), ("both", 24)])
def test_which_forward_moves_running_statistics(where, moves):
    record = trained(mlp(), 3, vectors(12), "fr", batch_norm=where)
    first, last = record.pipeline[0], record.pipeline[2]
    assert first.blocks[0][1].num_batches_tracked == moves
    assert last.blocks[0][1].num_batches_tracked == 12


def test_no_optimizer_is_called_before_the_first_backward():
    """A step with gradients of zero would decay weights and move momentum."""
    steps = []

    class Told(torch.optim.SGD):
        def step(self):
            steps.append(len(steps))
            super().step()

    record = train_epoch(pipeline(mlp(), 3, lambda p: Told(p, lr=0.1)), vectors(5), "fr")
    assert len(steps) == 15
    assert record.losses.shape == (5,)


def test_without_a_drain_the_last_gradients_are_lost():
    one = trained(mlp(), 3, vectors(9), "ddg", drain=False)
    assert not same(one, trained(mlp(), 3, vectors(9), "ddg"))
    assert one.pipeline.optimizers[0].state_dict()["state"]


def test_a_ledger_a_module():
    ledgers = [Ledger() for _ in range(3)]
    trained(mlp(), 3, vectors(6), "pipedream", ledgers=ledgers)
    assert [ledger.now for ledger in ledgers] == [0, 0, 0]
    one = [Ledger() for _ in range(3)]
    trained(mlp(), 3, vectors(6), "seq", ledgers=one)
    grown = [a.peak / b.peak for a, b in zip(ledgers, one, strict=True)]
    assert grown == [3, 2, 1], "weights and their versions are not counted"


def test_a_model_can_be_placed():
    from alkit import set_device

    made = set_device(pipeline(mlp(), 3), ["cpu"] * 3)
    expected = trained(mlp(), 3, vectors(6), "ddg")
    assert same(train_epoch(made, vectors(6), "ddg"), expected)


def test_forgetting_the_copy_is_silently_wrong(monkeypatch):
    """Nothing but this test would notice: torch does not."""
    from alkit.delayed.weights import Versions

    expected = trained(mlp(), 3, vectors(8), "pipedream")
    monkeypatch.setattr(Versions, "__init__", _without_copy(Versions.__init__), raising=True)
    assert not same(trained(mlp(), 3, vectors(8), "pipedream"), expected)


def _without_copy(init):
    def changed(self, module, *, stash=True):
        init(self, module, stash=False)

    return changed


def test_blocks_that_hand_on_tuples():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x):
            x, mask = x
            return self.linear(x) * mask, mask

    class Last(nn.Module):
        def forward(self, x):
            return x[0]

    def batches():
        mask = torch.ones(8, 6, dtype=torch.bool)
        return [((x, mask), y) for x, y in vectors(6)]

    torch.manual_seed(0)
    blocks = [Pair(), Pair(), Last()]
    record = delayed.train(blocks, F.cross_entropy, batches(), method="pipedream", cuts=[1, 2])
    assert torch.isfinite(record.losses).all()


def test_cuts_as_published():
    sizes = {
        k: [b - a for a, b in zip([0, *even_cuts(11, k)], [*even_cuts(11, k), 11], strict=True)]
        for k in (1, 2, 3, 4, 5, 6, 11)
    }
    assert sizes[2] == [6, 5]
    assert sizes[3] == [4, 4, 3]
    assert sizes[4] == [3, 3, 3, 2]
    assert sizes[6] == [2, 2, 2, 2, 2, 1]
    assert sizes[11] == [1] * 11
    assert sizes[1] == [11]
    assert sizes[5] == [3, 2, 2, 2, 2]


def _tied():
    blocks = mlp()
    blocks[4][0].weight = blocks[0][0].weight
    return blocks


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: even_cuts(3, 4), "4 modules for 3 blocks: give 1 to 3"),
        (lambda: Pipeline(mlp(), F.cross_entropy, [7]), r"cuts \[7\] for 6 blocks"),
        (lambda: Pipeline(mlp(), F.cross_entropy, [2.5]), "a cut falls between blocks"),
        (lambda: Pipeline(mlp(), F.cross_entropy, [3, 2]), "rising"),
        (lambda: Pipeline([], F.cross_entropy), "there are no blocks"),
        (lambda: Pipeline(_tied(), F.cross_entropy, [2]), "modules 0 and 1 share a parameter"),
        (lambda: pipeline(mlp(), 2, rates=[1.0]), "1 rates for 2 modules"),
        (lambda: trained(mlp(), 2, vectors(2), "dgd"), "unknown method 'dgd'"),
        (lambda: trained(mlp(), 2, vectors(2), "ddg", "proceses"), "give single, threads, ranks"),
        (lambda: trained(mlp(), 2, [], "ddg"), "there are no batches"),
        (lambda: trained(mlp(), 2, vectors(1), "2bw", micro=9), "8 does not divide into 9"),
        (lambda: trained(mlp(), 2, vectors(2), "ddg", replicas=2), "replicas are for ranks"),
        (lambda: trained(mlp(), 2, vectors(2), "ddg", batch_norm="off"), "give play, replay"),
        (lambda: trained(mlp(), 2, vectors(2), "ddg", clip=0.0), "give a positive norm"),
        (lambda: trained(mlp(), 2, vectors(2), "ddg", ledgers=[Ledger()]), "1 ledgers for 2"),
    ],
)
def test_bad_requests(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_tied_parameters_in_one_module_are_fine():
    record = train_epoch(Pipeline(_tied(), F.cross_entropy, [5], momentum), vectors(4), "ddg")
    assert torch.isfinite(record.losses).all()
    assert len(bits(record.pipeline)) > 0


def test_ranks_outside_of_a_group():
    with pytest.raises(RuntimeError, match="runs inside alkit.launch"):
        trained(mlp(), 2, vectors(2), "ddg", "ranks")


@pytest.mark.parametrize("executor", ["single", "threads"])
def test_a_loss_that_is_not_finite(executor):
    batches = vectors(4)
    batches[2] = (batches[2][0] * float("nan"), batches[2][1])
    with pytest.raises(FloatingPointError, match="at batch 2: lower the learning rate"):
        trained(mlp(), 2, batches, "ddg", executor)
