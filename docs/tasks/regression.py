"""Numbers to predict, by any family: a loss in the place of cross-entropy."""

import torch
from torch import nn

import alkit

torch.manual_seed(0)
x = torch.randn(600, 6)
y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin()], dim=1)  # (N, 2), float
train, held = (x[:500], y[:500]), (x[500:], y[500:])
print(f"{'the mean':12} mse {y[500:].var(0, unbiased=False).mean():.2f}")

for method in ("bp", "al_pipeline", "pipedream", "elastic", "dtp"):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(6, 32), nn.ELU()), nn.Sequential(nn.Linear(32, 32), nn.ELU())]
    al = method == "al_pipeline"  # its layers' losses are a recipe's
    own = {"recipe": "regression"} if al else {"loss": nn.functional.mse_loss}
    own |= {"lr": 0.005 if method in ("bp", "al_pipeline") else 0.05, "epochs": 20}
    record = alkit.fit(
        [*blocks, nn.Linear(32, 2)], train, held, held, method=method, progress=False, **own
    )
    print(f"{method:12} mse {record.metrics['loss']:.2f}")
