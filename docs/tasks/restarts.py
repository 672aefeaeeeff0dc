"""A run that outlives its ranks: torchrun ... restarts.py METHOD CHECKPOINT, on each machine."""

import sys

import torch
from torch import nn

import alkit

method, checkpoint = sys.argv[1:]
data = alkit.datasets.load("digits")
torch.manual_seed(0)  # every rank makes the same blocks
blocks = [
    nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ELU()),
    nn.Sequential(nn.Linear(48, 48), nn.ELU()),
    nn.Sequential(nn.Linear(48, 48), nn.ELU()),
    nn.Linear(48, 10),
]
asked = {"method": method, "lr": 0.005, "epochs": 6, "progress": False}
with alkit.torchrun_group():  # torchrun says who is who, anew after each restart
    record = alkit.fit(blocks, data, checkpoint=checkpoint, **asked)
    if torch.distributed.get_rank() == 0:
        ranks, epochs = torch.distributed.get_world_size(), len(record.history)
        print(f"{method}: {epochs} epochs, {ranks} ranks at the end, {record.test_acc:.2f}")
