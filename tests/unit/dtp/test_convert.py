"""Feedback for blocks of torch's own modules."""

import copy

import pytest
import torch
from torch import nn

import alkit
from alkit import dtp
from alkit.dtp.networks import EXACT
from studies.dtp.angles import compare

x = torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(1))
y = torch.randint(3, (40,), generator=torch.Generator().manual_seed(2))
PARTS = (x[:24], y[:24]), (x[24:32], y[24:32]), (x[32:], y[32:])


def blocks(act=nn.ELU):
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), act(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), act()),
        nn.Flatten(),
        nn.Sequential(nn.Linear(24, 8), act(), nn.Identity()),
        nn.Linear(8, 3),
    ]


@pytest.mark.parametrize("act", [nn.ELU, nn.ReLU, nn.Tanh, lambda: nn.LeakyReLU(0.1)])
def test_the_network_computes_what_the_blocks_do(act):
    own = blocks(act)
    net = dtp.from_blocks(own)
    assert torch.equal(net(x), nn.Sequential(*own)(x))
    assert [net.label(n) for n in range(len(net))] == ["conv_0", "conv_1", "fc_2", "fc_3"]
    shared = {id(p) for p in nn.ModuleList(own).parameters()}
    assert shared <= {id(p) for p in net.parameters()}


def test_a_symmetric_exact_feedback_gives_backprop_s_gradient():
    """With transposed weights a small target's gradient is beta times backprop's."""
    net = dtp.from_blocks(blocks()[3:], switches=EXACT).double()
    net.make_symmetric()
    for block in net:
        for piece in block.pieces:
            if getattr(piece, "bias", None) is not None:
                nn.init.normal_(piece.bias)
    given = torch.randn(16, 24, dtype=torch.float64)
    rows = torch.eye(3, dtype=torch.float64)[y[:16]]
    table = compare(net, given, rows, 1e-5)
    assert table.angle.max() < 0.1


@pytest.mark.parametrize("method", ["dtp", "tp"])
def test_blocks_train_in_place_by_the_one_face(method):
    own = blocks()
    before = copy.deepcopy(nn.ModuleList(own)).state_dict()
    options = {"iterations": 2, "lr": 1e-3, "batch_size": 8, "progress": False}
    record = alkit.fit(own, *PARTS, method=method, **options)
    after = nn.ModuleList(own).state_dict()
    assert all(not torch.equal(after[name], before[name]) for name in before)
    assert torch.isfinite(record.losses).all()
    assert torch.equal(record.model.predict(x), nn.Sequential(*own)(x).detach())


@pytest.mark.parametrize(
    "module",
    [
        nn.BatchNorm2d(1),
        nn.Dropout(0.1),
        nn.Conv2d(1, 4, (3, 5)),
        nn.Conv2d(2, 4, 3, groups=2),
        nn.Conv2d(1, 4, 3, padding="same"),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.ELU(0.5),
        nn.Flatten(2),
    ],
    ids=str,
)
def test_what_has_no_inverse_is_named(module):
    with pytest.raises(dtp.NoInverse, match="in block 1 has no inverse here: take AdaptiveAvgPool"):
        dtp.from_blocks([nn.Conv2d(1, 1, 3), nn.Sequential(nn.ELU(), module), nn.Linear(8, 3)])
