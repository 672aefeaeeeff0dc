"""Several machines: torchrun ... machines.py METHOD, the same on each."""

import sys

import torch
from torch import nn

import alkit

method = sys.argv[1]  # al_pipeline, pipedream or another delayed one, elastic, dtp
data = alkit.datasets.load("digits")
torch.manual_seed(0)  # every rank makes the same blocks
blocks = [
    nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ELU()),
    nn.Sequential(nn.Linear(48, 48), nn.ELU()),
    nn.Sequential(nn.Linear(48, 48), nn.ELU()),
    nn.Linear(48, 10),
]
with alkit.torchrun_group():  # torchrun says who is who
    lr = 0.1 if method in ("pipedream", "dtp") else 0.005
    record = alkit.fit(blocks, data, method=method, lr=lr, epochs=3, progress=False)
    if torch.distributed.get_rank() == 0:
        print(f"{method} on {torch.distributed.get_world_size()} ranks: {record.test_acc:.2f}")
