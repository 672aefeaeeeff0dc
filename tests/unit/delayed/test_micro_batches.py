"""What micro-batches may do beside their order: run again, and count as one batch."""

import pytest
import torch
from torch import nn

import alkit
from alkit.engine.ledger import Ledger
from tests.unit.delayed.nets import equal, mlp, outcome, trained, vectors

FLUSHED = ["gpipe", "1f1b", "zero_bubble"]


def noisy():
    return mlp(dropout=0.3)


@pytest.mark.parametrize("method", [*FLUSHED, "looped_bfs", "zbv", "fa"])
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
        calls = [0, 0]

        def count(at):
            def hook(*_):
                calls[at] += 1

            return hook

        blocks = mlp(2)
        for at, block in enumerate(blocks):
            block.register_forward_pre_hook(count(at))
        trained(blocks, 2, vectors(1), method, micro=micro, recompute=True)
        return calls

    assert runs("1f1b", 4) == [8, 4]  # the last module has one in flight
    assert runs("gpipe", 4) == [8, 8]
    assert runs("1f1b", 1) == [1, 1]


def test_graphs_of_one_micro_batch_are_kept_at_a_time():
    def most(**own):
        ledgers = [Ledger(), Ledger()]
        blocks = [nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(8)])]
        blocks += [nn.Linear(6, 3)]
        trained(blocks, 2, vectors(2), "gpipe", micro=8, ledgers=ledgers, **own)
        return ledgers[0].peak

    assert most(recompute=True) < 0.3 * most()


@pytest.mark.parametrize("method", [*FLUSHED, "interleaved_1f1b"])
def test_deferred_statistics_are_those_of_the_whole_batch(method):
    """Of the first norm, whose inputs are the same; counted once a batch, and in any executor."""

    def made():
        torch.manual_seed(0)
        norms = nn.BatchNorm1d(6), nn.BatchNorm1d(6, momentum=None), nn.BatchNorm1d(6)
        blocks = [nn.Sequential(nn.Linear(6, 6), norm, nn.Tanh()) for norm in norms]
        blocks[2].requires_grad_(False).eval()  # a frozen part stays as it is
        return [*blocks, nn.Linear(6, 3)]

    def run(**own):
        return trained(made(), 4, vectors(1, size=15), method, **own)

    plain = trained(made(), 4, vectors(1, size=15), "1f1b")
    found = run(micro=4, deferred_batch_norm=True)
    whole, parts = (list(own.pipeline.all_blocks) for own in (plain, found))
    for key in ("running_mean", "running_var", "num_batches_tracked"):
        want, have = (getattr(blocks[0][1], key) for blocks in (whole, parts))
        torch.testing.assert_close(have, want)
        assert torch.equal(getattr(parts[2][1], key), getattr(nn.BatchNorm1d(6), key))
    assert int(parts[1][1].num_batches_tracked) == 1
    apart = run(micro=4)
    assert int(apart.pipeline.all_blocks[0][1].num_batches_tracked) == 4
    weights = [[*own.pipeline.parameters()] for own in (apart, found)]
    assert equal(*weights)  # training normalises alike
    again = run(micro=4, deferred_batch_norm=True, recompute=True, executor="threads")
    assert equal(outcome(again), outcome(found))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_images_and_several_batches(dtype):
    def made():
        torch.manual_seed(0)
        conv = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        return [conv.to(dtype), nn.Sequential(nn.Flatten(), nn.Linear(144, 3)).to(dtype)]

    x, y = torch.randn(5, 22, 1, 8, 8, dtype=dtype) * 3 + 2, torch.arange(22) % 3
    batches = [(each, y) for each in x]
    batches[3] = x[3, :2], y[:2]  # fewer than there are micro-batches
    plain = trained(made(), 2, batches, "1f1b", optimizer=still).pipeline
    found = trained(made(), 2, batches, "1f1b", optimizer=still, micro=4, deferred_batch_norm=True)
    want, have = (dict(own.named_buffers()) for own in (plain, found.pipeline))
    close = 1e-13 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(have, want, rtol=close, atol=close)


@pytest.mark.parametrize("method", [*FLUSHED, "looped_bfs", "zbv", "interleaved_1f1b"])
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


def still(parameters):
    return torch.optim.SGD(parameters, lr=0.0)


@pytest.mark.parametrize(
    ("method", "own", "words"),
    [
        ("pipedream", {"recompute": True}, "recompute is True, which pipedream can't take: it is"),
        (
            "2bw",
            {"micro": 2, "deferred_batch_norm": True},
            "deferred_batch_norm is True, which 2bw can't",
        ),
        ("dfa", {"recompute": True}, "keeps a graph a layer"),
        ("1f1b", {"deferred_batch_norm": True, "batch_norm": "both"}, "so leave it out"),
    ],
)
def test_what_does_not_fit_is_refused(method, own, words):
    with pytest.raises(ValueError, match=words):
        trained(mlp(), 2, vectors(4), method, **own)


def test_by_fit():
    x = torch.randn(72, 6)
    data = x, x[:, :3].argmax(1)
    own = {"micro": 4, "recompute": True, "deferred_batch_norm": True, "progress": False}
    made = alkit.fit(mlp(), data, method="gpipe", **own)
    norm = made.model.all_blocks[0][1]
    assert int(norm.num_batches_tracked) == 3  # batches of 32, 32 and 8
    with pytest.raises(ValueError, match="compile is True, .* normalise can't be seen"):
        alkit.fit(mlp(), data, method="gpipe", compile=True, **own)


def test_a_batch_norm_that_runs_twice_moves_twice():
    def moved(**options):
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(8)
        blocks = [nn.Linear(8, 8), norm, nn.Tanh(), norm, nn.Linear(8, 3)]
        x, y = torch.randn(32, 8), torch.randint(3, (32,))
        options = {"method": "1f1b", "cuts": [4], "lr": 0.0, "progress": False} | options
        alkit.fit(blocks, (x, y), **options)
        return norm.running_mean, norm.num_batches_tracked

    whole, cut = moved(), moved(micro=4, deferred_batch_norm=True)
    assert cut[1] == whole[1] == 2
    # the second use sees what each micro-batch was normalised by
    torch.testing.assert_close(cut[0], whole[0], atol=0.05, rtol=0)
