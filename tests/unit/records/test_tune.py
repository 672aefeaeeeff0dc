"""A rate chosen on validation, and how records, timelines and methods show themselves."""

import matplotlib.pyplot as plt
import pytest
import torch
from torch import nn

import alkit

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
DATA = X, X[:, :3].argmax(1)


def make():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.mark.parametrize(
    "method", ["bp", "al_pipeline", "pipedream", "pipelearn", "elastic", "dtp"]
)
def test_the_best_rate_on_validation_is_chosen(method):
    found = alkit.tune(make, DATA, DATA, method=method, lr=[0.05, 1e-7], epochs=4, progress=False)
    assert found.lr == 0.05
    assert list(found.table.lr) == [1e-7, 0.05]
    assert found.at_end
    assert found.table.val_acc.max() == found.table.val_acc[1]
    again = alkit.fit(_seeded(), DATA, DATA, method=method, lr=0.05, epochs=4, progress=False)
    assert again.history.val_acc[again.best_epoch - 1] == found.table.val_acc[1]


def _seeded():
    torch.manual_seed(0)
    return make()


def test_a_rate_that_diverges_is_never_chosen():
    def sgd(parameters, lr):
        return torch.optim.SGD(parameters, lr=lr)

    numbers = X, X[:, :3]
    options = {"method": "bp", "loss": nn.MSELoss(), "optimizer": sgd, "progress": False}
    found = alkit.tune(make, numbers, numbers, lr=[1e-3, 0.1, 1e30], epochs=2, **options)
    assert found.value == "val_loss"
    assert found.lr == 0.1
    assert not found.at_end
    assert list(found.table.diverged) == [False, False, True]
    with pytest.raises(ValueError, match="finite at none of the rates"):
        alkit.tune(make, numbers, numbers, lr=[1e30], epochs=2, **options)
    with pytest.raises(ValueError, match="give rates, and a part"):
        alkit.tune(make, DATA, None, progress=False)


def test_what_a_notebook_shows():
    found = alkit.tune(make, DATA, DATA, method="bp", lr=[1e-3, 1e-2], progress=False)
    assert "end of the grid" in found._repr_html_()
    assert found.plot().axes[0].get_xscale() == "log"
    record = alkit.fit(make(), DATA, DATA, DATA, epochs=20, progress=False)
    page = record._repr_html_()
    assert "<b>method</b> al_pipeline" in page
    assert "8 earlier epochs are in record.history" in page
    labels = [ax.get_ylabel() for ax in record.plot().axes]
    assert labels[:2] == ["training loss", "validation accuracy"]
    assert len(record.timeline.plot(batches=2).axes[0].patches) > 2
    assert "idle share" in record.timeline._repr_html_()
    assert "al_pipeline" in alkit.METHODS._repr_html_()
    assert " at 0x" not in repr(alkit.METHODS)
