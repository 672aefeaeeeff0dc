"""Every layer with a head is an exit: easy samples leave early."""

import torch
from torch import nn

import alkit

data = alkit.datasets.load("digits")
torch.manual_seed(0)
blocks = [nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU())]
blocks += [nn.Sequential(nn.Linear(48, 48), nn.ReLU()) for _ in range(3)]
record = alkit.fit(blocks, data, method="local_pipeline", epochs=8, progress=False)

model, x, y = record.model, data.test.x, data.test.y
scores = torch.stack([model.predict(x, depth=depth) for depth in range(1, 5)])
p = scores.softmax(2)
entropy = -(p * p.clamp(min=1e-12).log()).sum(2) / torch.tensor(10.0).log()  # 0 sure, 1 clueless
for threshold in (0.0, 0.1, 0.3):
    sure = entropy < threshold
    sure[-1] = True
    leaves = sure.int().argmax(0)  # the first exit that is sure
    right = scores.argmax(2).gather(0, leaves[None])[0] == y
    print(threshold, f"{right.float().mean():.2f}", leaves.bincount(minlength=4).tolist())
