"""Two fits at once, in threads of one process, end in the bits of each alone."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import alkit

METHODS = ("bp", "al", "al_pipeline", "local", "pipedream", "1f1b", "pipelearn", "elastic", "dtp")
x = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(x, x[:, :3].argmax(1))


def trained(method: str, seed: int, loader: bool) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    parts = [nn.Linear(6, 6), nn.LeakyReLU(0.5), nn.Linear(6, 6), nn.LeakyReLU(0.5)]
    blocks = [*parts, nn.Linear(6, 3)]
    for own in nn.ModuleList(blocks).parameters():
        own.data = 0.3 * torch.randn(own.shape, generator=draw)
    data = DataLoader(DATA, 32, shuffle=True) if loader else DATA.tensors
    own = {} if loader else {"batch_size": 32}
    record = alkit.fit(blocks, data, method=method, epochs=2, seed=seed, progress=False, **own)
    return torch.cat([each.flatten() for each in record.model.state_dict().values()])


@pytest.mark.parametrize("loader", [False, True], ids=["memory", "loader"])
@pytest.mark.parametrize("method", METHODS)
def test_at_once_as_alone(method, loader):
    alone = [trained(method, seed, loader) for seed in (0, 1)]
    found: dict[int, torch.Tensor] = {}

    def run(seed: int) -> None:
        found[seed] = trained(method, seed, loader)

    crew = [threading.Thread(target=run, args=[seed]) for seed in (0, 1)]
    for each in crew:
        each.start()
    for each in crew:
        each.join()
    assert all(torch.equal(found[seed], alone[seed]) for seed in (0, 1))
