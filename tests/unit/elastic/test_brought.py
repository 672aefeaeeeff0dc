"""What users bring to elastic training: norms, ties, what they froze, dicts, sparse tables."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import alkit
from alkit.elastic.freeze import Observation, policy

X = torch.randn(250, 8, generator=torch.Generator().manual_seed(1))
Y = X[:, :3].argmax(1)


def fit(model, data=(X, Y), *parts, **options):
    return alkit.fit(model, data, *parts, method="elastic", progress=False, **options)


def maps(*sizes):
    torch.manual_seed(0)
    return [nn.Linear(low, high) for low, high in zip(sizes, sizes[1:], strict=False)]


def normed():
    torch.manual_seed(0)
    first, third = (nn.Sequential(nn.Linear(n, 16), nn.BatchNorm1d(16)) for n in (8, 16))
    return [first, nn.ReLU(), third, nn.Linear(16, 3)]


def test_micro_batches_are_as_many_as_was_said():
    model, sizes = normed(), set()
    model[0][1].register_forward_hook(
        lambda norm, given, out: sizes.add(len(out)) if norm.training else None
    )
    fit(model, (X[:224], Y[:224]), workers=2, micro=1)
    assert sizes == {32}


@pytest.mark.parametrize("given", [{}, {"micro": 4}])
def test_a_last_batch_may_have_fewer_samples_than_there_are_micro_batches(given):
    data = DataLoader(TensorDataset(X[:66], Y[:66]), batch_size=32)
    done = fit(maps(8, 8, 3), data, workers=2, **given)
    assert done.losses.numel() == 3


@pytest.mark.parametrize("parts", [{"workers": 2, "stages": 1}, {"micro": 4}])
def test_a_loss_that_does_not_say_what_it_is_over_is_not_cut(parts):
    with pytest.raises(ValueError, match="does not say what it is over"):
        fit(maps(8, 8, 3), loss=lambda s, y: F.cross_entropy(s, y), **parts)


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


def test_what_was_frozen_in_the_run_learns_in_the_next():
    model = maps(8, 16, 16, 16, 3)
    model[0].bias.requires_grad_(False)
    assert fit(model, freeze="schedule", epochs=3).details.layouts[-1].frozen
    assert [own.requires_grad for each in model for own in each.parameters()] == [
        True,
        False,
        *[True] * 6,
    ]


class Summed(nn.Module):
    """Takes a dict."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 16)

    def forward(self, x):
        return self.linear(x["a"] + x["b"])


def test_features_of_dicts_are_stored():
    torch.manual_seed(0)
    model = [Summed(), *maps(16, 16, 16, 16, 3)]
    done = fit(model, ({"a": X, "b": X}, Y), freeze="schedule", epochs=3)
    assert done.history.cached.any()


def test_a_table_of_sparse_gradients_trains():
    first = nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Flatten())
    words = torch.randint(0, 20, (250, 8))
    done = fit([first, nn.Linear(64, 3)], (words, Y), optimizer=torch.optim.SGD, lr=0.1)
    assert done.losses.isfinite().all()


def test_a_part_that_is_only_measured_may_be_chosen_by_a_sampler():
    held = DataLoader(TensorDataset(X, Y), batch_size=32, sampler=SubsetRandomSampler(range(50)))
    assert len(fit(maps(8, 8, 3), (X, Y), held).history.val_acc)


@pytest.mark.parametrize("other", [torch.optim.SGD, torch.optim.AdamW])
def test_a_run_goes_on_with_its_own_optimiser(other, tmp_path):
    def run(epochs, made):
        options = {"lr": 0.01, "epochs": epochs, "checkpoint": tmp_path / "run"}
        return fit(maps(8, 8, 3), optimizer=made, **options)

    run(1, torch.optim.Adam)
    with pytest.raises(ValueError, match="optimizer"):
        run(2, other)
    assert len(run(2, torch.optim.Adam).history) == 2


def test_one_sample_is_a_batch():
    assert len(fit(maps(8, 8, 3), (X[:1], Y[:1])).losses) == 1
