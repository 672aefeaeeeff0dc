"""Several devices: layers among them, or a process for each."""

import torch
from torch import nn

import alkit
from alkit.engine.device import available

data = alkit.datasets.load("digits")


def blocks() -> list[nn.Module]:
    """Make the same blocks every time."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ELU())
    return [
        first,
        *(nn.Sequential(nn.Linear(48, 48), nn.ELU()) for _ in range(2)),
        nn.Linear(48, 10),
    ]


devices = available()  # ["cpu"], or ["cpu", "cuda:0", "cuda:1"]
asked = {"lr": 0.005, "epochs": 3, "progress": False}
among = devices[1:] or "cpu"
shared = alkit.fit(blocks(), data, method="al_pipeline", device=among, workers=2, **asked)
crew = alkit.fit(blocks(), data, method="al_pipeline", device="auto", ranks=2, **asked)
for name, record in (("layers among devices", shared), ("a process each", crew)):
    print(f"{name:20} accuracy {record.test_acc:.3f}")
