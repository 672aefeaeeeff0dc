"""What users bring to elastic training: blocks, norms, ties, what they froze, dicts, tables."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import alkit
from alkit.elastic import Network
from alkit.elastic.freeze import Observation, policy
from tests.make import labelled

X, Y = labelled(250, 8)


def fit(model, data=(X, Y), *parts, **options):
    return alkit.fit(model, data, *parts, method="elastic", progress=False, **options)


def maps(*sizes):
    torch.manual_seed(0)
    return [nn.Linear(low, high) for low, high in zip(sizes, sizes[1:], strict=False)]


def test_layers_freeze_one_by_one_if_it_is_asked_for():
    assert fit(maps(8, 8, 8, 8, 3), epochs=3).details.layouts[-1].frozen == 0
    blocks = maps(8, 8, 8, 8, 8, 3)
    blocks[0].bias.requires_grad_(False)
    record = fit(blocks, freeze="schedule", epochs=3)
    frozen = record.details.layouts[-1].frozen
    assert 0 < frozen == record.model.frozen
    # blocks learn on as they came
    learning = [own.requires_grad for each in blocks for own in each.parameters()]
    assert learning == [True, False, *[True] * 8]
    alkit.fit(record.model, (X, Y), epochs=1, progress=False)
    active = [all(p.requires_grad for p in unit.parameters()) for unit in record.model.units]
    assert active == [False] * (1 + frozen) + [True] * (4 - frozen)


def test_units_a_layer_may_be_three():
    network = Network(maps(*[8] * 8, 3), 2, F.cross_entropy, units_a_layer=3)
    assert [network.layer_of(unit) for unit in range(8)] == [None, 0, 0, 0, 1, 1, 1, None]
    record = fit(network, epochs=3, freeze="schedule")
    assert network.frozen == record.details.layouts[-1].frozen > 0


def test_micro_batches_are_as_many_as_was_said():
    first, third = (nn.Sequential(*maps(n, 16), nn.BatchNorm1d(16)) for n in (8, 16))
    sizes = set()
    first[1].register_forward_hook(
        lambda norm, given, out: sizes.add(len(out)) if norm.training else None
    )
    fit([first, nn.ReLU(), third, *maps(16, 3)], (X[:224], Y[:224]), workers=2, micro=1)
    assert sizes == {32}


@pytest.mark.parametrize("given", [{}, {"micro": 4}])
def test_a_last_batch_may_have_fewer_samples_than_there_are_micro_batches(given):
    data = DataLoader(TensorDataset(X[:66], Y[:66]), batch_size=32)
    assert fit(maps(8, 8, 3), data, workers=2, **given).losses.numel() == 3
    assert len(fit(maps(8, 8, 3), (X[:1], Y[:1])).losses) == 1


def test_a_layer_without_anything_to_learn_decides_nothing():
    assert policy("gradnorm")(Observation(4, 0, 3, ((0.1, 0.5, -1.0, 0.9),))) == 1
    model, seen = maps(8, 8, 8, 8, 8, 3), []
    model[2].requires_grad_(False)
    fit(model, freeze=lambda now: seen.extend(now.norms) or 0, epochs=3)
    assert {row[1] for row in seen} == {-1.0}
    assert all(min(row[0], row[2]) > 0 for row in seen)


class Read(nn.Module):
    """Scores by a table that another block has, too."""

    def __init__(self, table):
        super().__init__()
        self.weight = table

    def forward(self, x):
        return x @ self.weight


def test_what_stays_shares_nothing_with_what_freezes():
    first, *layers = maps(8, 16, 16, 16)
    model = [first, *layers, Read(first.weight)]
    with pytest.raises(ValueError, match="share"):
        fit(model, (X, X.argmax(1)), freeze="schedule", epochs=2)
    fit(model, (X, X.argmax(1)), epochs=2)


class Mixed(nn.Linear):
    """Takes a dict and hands it on, but for one entry."""

    def forward(self, x):
        return x | {"b": super().forward(x["b"]) - x["a"]}


class Last(nn.Linear):
    """Reads both entries of a dict."""

    def forward(self, x):
        return super().forward(x["a"] * x["b"])


def test_features_of_dicts_are_stored():
    def run(**options):
        torch.manual_seed(0)
        model = [*(Mixed(8, 8) for _ in range(5)), Last(8, 3)]
        data = {"b": X, "a": X.flip(1)}, Y
        return fit(model, data, freeze="schedule", epochs=3, workers=2, **options)

    found = run()
    assert found.history.cached.any()
    assert torch.equal(found.losses, run(cache=False).losses)


def test_a_table_of_sparse_gradients_trains():
    first = nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Flatten())
    words = torch.randint(0, 20, (250, 8))
    done = fit([first, nn.Linear(64, 3)], (words, Y), optimizer=torch.optim.SGD, lr=0.1)
    assert done.losses.isfinite().all()


def test_a_part_that_is_only_measured_may_be_chosen_by_a_sampler():
    held = DataLoader(TensorDataset(X, Y), batch_size=32, sampler=SubsetRandomSampler(range(50)))
    assert len(fit(maps(8, 8, 3), (X, Y), held).history.val_acc)


def test_a_run_goes_on_with_its_own_optimiser(tmp_path):
    def run(epochs, made):
        options = {"lr": 0.01, "epochs": epochs, "checkpoint": tmp_path / "run"}
        return fit(maps(8, 8, 3), optimizer=made, **options)

    run(1, torch.optim.Adam)
    for other in (torch.optim.SGD, torch.optim.AdamW):
        with pytest.raises(ValueError, match="optimizer"):
            run(2, other)
    assert len(run(2, torch.optim.Adam).history) == 2
