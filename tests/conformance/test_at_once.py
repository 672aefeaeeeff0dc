"""Two fits at once, in threads of one process, end in the bits of each alone."""

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import alkit

METHODS = ("bp", "al", "al_pipeline", "local", "pipedream", "1f1b", "pipelearn", "elastic", "dtp")
x = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(x, x[:, :3].argmax(1))
NETWORK = [nn.Linear(6, 6), nn.LeakyReLU(0.5), nn.Linear(6, 3)]


def trained(method: str, loader: bool, seed: int, blocks: list[nn.Module]) -> torch.Tensor:
    data = DataLoader(DATA, 32, shuffle=True) if loader else DATA.tensors
    record = alkit.fit(blocks, data, method=method, epochs=2, seed=seed, progress=False)
    return torch.cat([each.flatten() for each in record.model.state_dict().values()])


@pytest.mark.parametrize("loader", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_at_once_as_alone(method, loader):
    run, nets = partial(trained, method, loader), [deepcopy(NETWORK) for _ in range(4)]
    alone = [*map(run, (0, 1), nets)]
    with ThreadPoolExecutor(2) as crew:
        assert all(map(torch.equal, crew.map(run, (0, 1), nets[2:]), alone))
