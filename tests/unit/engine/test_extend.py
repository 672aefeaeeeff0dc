"""A finished run goes on for more epochs as if it had been asked for all of them at once."""

import pytest
import torch
from torch import nn

import alkit

x = torch.randn(48, 6, generator=torch.Generator().manual_seed(1))
y = torch.randint(3, (48,), generator=torch.Generator().manual_seed(2))
PARTS = (x[:32], y[:32]), (x[32:40], y[32:40]), (x[40:], y[40:])


def fitted(method, epochs, path=None, **options):
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.2)) for _ in range(3)]
    blocks = hidden if method.startswith("al") else [*hidden, nn.Linear(6, 3)]
    options = {"batch_size": 8, "progress": False, "lr": 0.02, "epochs": epochs} | options
    return alkit.fit(blocks, *PARTS, method=method, checkpoint=path, **options)


@pytest.mark.parametrize("method", ["bp", "al_pipeline", "pipedream"])
def test_two_epochs_and_three_more_are_five(method, tmp_path):
    whole = fitted(method, 5)
    first = fitted(method, 2, tmp_path / "run.pt")
    again = fitted(method, 5, tmp_path / "run.pt")
    assert first.history.loss.tolist() == whole.history.loss.tolist()[:2]
    assert again.history.loss.tolist() == whole.history.loss.tolist()
    assert again.best_epoch == whole.best_epoch
    assert torch.equal(again.test_correct, whole.test_correct)
    for one, other in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_schedule_that_ends_is_not_extended(tmp_path):
    fitted("bp", 2, tmp_path / "run.pt", scheduler="cosine")
    with pytest.raises(ValueError, match="epochs is 2 there and 4 here"):
        fitted("bp", 4, tmp_path / "run.pt", scheduler="cosine")


def test_a_run_is_not_shortened(tmp_path):
    fitted("bp", 3, tmp_path / "run.pt")
    with pytest.raises(ValueError, match="epochs is 3 there and 2 here"):
        fitted("bp", 2, tmp_path / "run.pt")
