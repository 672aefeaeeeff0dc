"""One model and the same tensors by every family: only `method` changes."""

import torch
from torch import nn

import alkit

data = alkit.datasets.load("digits")
train, held = (data.train.x, data.train.y), (data.test.x, data.test.y)

for method in ("bp", "al_pipeline", "pipedream", "1f1b", "splitfed", "elastic", "dtp"):
    torch.manual_seed(0)
    model = nn.Sequential(  # a list of blocks, or a torchvision ResNet, would do as well
        nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ELU()),
        nn.Sequential(nn.Linear(48, 48), nn.ELU()),
        nn.Linear(48, 10),
    )
    options = {"method": method, "epochs": 5, "progress": False}
    if method != "dtp":  # the others train by Adam; target propagation has an optimiser of its own
        options["lr"] = 0.005
    record = alkit.fit(model, train, held, held, **options)
    print(f"{method:12} accuracy {record.test_acc:.2f}")
