"""Six faults of public pipelines, as they would stand in your loop, and what the judge says."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import alkit

torch.manual_seed(0)
BATCHES, MICRO = 2, 4
net = nn.Sequential(
    *[nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(3)], nn.Linear(12, 4)
)
data = [(torch.randn(16, 12), torch.randint(4, (16,))) for _ in range(BATCHES)]


def parts(x, y):
    return zip(x.chunk(MICRO), y.chunk(MICRO), strict=True)


def right():
    for x, y in data:
        for a, b in parts(x, y):
            (cross_entropy(net(a), b) / (MICRO * BATCHES)).backward()


def torchtitan_1733():  # every batch divides all that has accumulated
    for x, y in data:
        for a, b in parts(x, y):
            (cross_entropy(net(a), b) / BATCHES).backward()
        for p in net.parameters():
            p.grad /= MICRO


def torchtitan_963():  # layers that no stage has
    right()
    for p in net[1].parameters():
        p.grad = None


def deepspeed_7773():  # summed, not averaged
    for x, y in data:
        for a, b in parts(x, y):
            (cross_entropy(net(a), b) / BATCHES).backward()


def deepspeed_8152():  # divided once a stage
    right()
    for k, block in enumerate(net):
        for p in block.parameters():
            p.grad /= MICRO ** (len(net) - 1 - k)


def deepspeed_5729():  # the loss of another micro-batch
    for x, y in data:
        labels = y.chunk(MICRO)
        for m, (a, _) in enumerate(parts(x, y)):
            (cross_entropy(net(a), labels[m - 1]) / (MICRO * BATCHES)).backward()


def nemo_automodel_3530():  # only the last micro-batch counts
    for x, y in data:
        for a, b in parts(x, y):
            net.zero_grad()
            (cross_entropy(net(a), b) / (MICRO * BATCHES)).backward()


for step in (right, torchtitan_1733, torchtitan_963, deepspeed_7773, deepspeed_8152,
             deepspeed_5729, nemo_automodel_3530):  # fmt: skip
    net.zero_grad()
    step()
    print(f"{step.__name__:20}{alkit.judge(net, cross_entropy, data, micro=MICRO)}")
