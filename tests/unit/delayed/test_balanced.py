"""cuts="balanced": by measured cost; the data and the model stay."""

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.models import resnet18

import alkit

X, Y = torch.randn(64, 32), torch.arange(64) % 3


def uneven():
    """Return four blocks, of which the last costs most by far."""
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(32, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU())
    thin = [nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.1), nn.BatchNorm1d(32)) for _ in range(3)]
    return [*thin, nn.Sequential(wide, nn.Linear(2048, 3))]


def fitted(blocks, method="pipedream", **own):
    own = {"workers": 2, "batch_size": 32, "lr": 0.01, "progress": False} | own
    return alkit.fit(blocks, (X, Y), method=method, **own)


@pytest.mark.parametrize("method", ["pipedream", "fr", "1f1b", "2bw"])
def test_a_dear_block_has_a_worker_for_itself(method):
    micro = {"micro": 2} if method in ("1f1b", "2bw") else {}
    record = fitted(uneven(), method, cuts="balanced", **micro)
    assert record.model.cuts == (3,)


def test_ranks_cut_alike():
    assert fitted(uneven(), cuts="balanced", workers=None, ranks=2).model.cuts == (3,)


def test_bits_are_those_of_the_same_cuts_given_by_hand():
    """Nothing was trained, nothing drawn by what was measured."""
    first, drawn = fitted(uneven(), cuts="balanced"), torch.get_rng_state()
    second = fitted(uneven(), cuts=[3])
    assert torch.equal(drawn, torch.get_rng_state())
    assert first.losses.tolist() == second.losses.tolist()
    states = [each.model.state_dict().values() for each in (first, second)]
    assert all(torch.equal(*pair) for pair in zip(*states, strict=True))


def test_the_ordinary_case():
    """A shuffled loader whose last batch is smaller, a network as it comes, class numbers."""
    data = torch.utils.data.TensorDataset(torch.randn(20, 3, 32, 32), torch.arange(20) % 3)
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    net = resnet18(num_classes=3)
    options = {"method": "1f1b", "micro": 2, "workers": 3, "lr": 0.01, "progress": False}
    record = alkit.fit(net, loader, cuts="balanced", **options)
    assert len(record.model.cuts) == 2
    assert torch.equal(net.eval()(data[0][0][None]), record.predict(data[0][0][None]))


def test_numbers_of_numpy_are_cuts():
    assert fitted(uneven(), cuts=np.array([2])).model.cuts == (2,)


def test_a_saved_network_says_the_cuts(tmp_path):
    record = fitted(uneven(), cuts="balanced")
    alkit.save(record, tmp_path / "net.pt")
    loaded = alkit.load(tmp_path / "net.pt", uneven())
    assert loaded.cuts == (3,)
    assert torch.equal(loaded.predict(X), record.predict(X))


REFUSED = [
    ({"cuts": "even"}, "cuts is 'even': give block numbers, or 'balanced'"),
    ({"cuts": "balanced", "method": "al_pipeline"}, "give a list of layer numbers"),
    ({"cuts": "balanced", "checkpoint": "run.pt"}, "needs the cuts that it had"),
]


@pytest.mark.parametrize(("own", "said"), REFUSED)
def test_what_is_refused(own, said):
    with pytest.raises((TypeError, ValueError), match=said):
        fitted(uneven(), **own)
