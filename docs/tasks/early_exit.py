"""Every layer with a head is an exit: easy samples leave early, at a fraction of the cost."""

import torch
from torch import nn

import alkit
from alkit.al import exits

data = alkit.datasets.load("digits")
torch.manual_seed(0)
blocks = [nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU())]
blocks += [nn.Sequential(nn.Linear(48, 48), nn.ReLU()) for _ in range(3)]
record = alkit.fit(blocks, data, method="local_pipeline", exits=True, epochs=8, progress=False)
shown = [f"val_acc_{depth}" for depth in range(1, 5)]
print(record.history[shown].tail(1).round(2).to_string(index=False))

scores = exits.scores(record.model, data.test)  # of every exit
costs = exits.costs(record.model, data.test.x[:1])
table = exits.sweep(scores, data.test.y, costs, [0.0, 0.1, 0.3])
print(table.round(2).to_string(index=False))
