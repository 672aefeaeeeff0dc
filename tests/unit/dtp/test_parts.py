"""Blocks, networks, lists, metrics, rates: what training is put together from."""

import math

import pytest
import torch
from torch import nn

import alkit
from alkit import dtp
from alkit.dtp.block import Block
from alkit.dtp.invertible import Activation, AvgPool, Conv, Dense, MaxPool, Reshape
from alkit.dtp.optimizers import rate
from alkit.dtp.settings import aligned
from studies.dtp import angles
from studies.dtp.one_batch import feedback_rates, weight_symmetry
from studies.dtp.presets import PRESETS
from tests.unit.dtp.helpers import made_set

NAMES = ["conv_1", "conv_2", "fc_3"]


@pytest.mark.parametrize(
    ("name", "forward", "feedback"),
    [
        ("simple_vgg", 2_221_706, 2_216_960),
        ("lenet", 2_156_490, None),
    ],
)
def test_counts_of_parameters(name, forward, feedback):
    net = dtp.network(name)
    assert forward == sum(p.numel() for block in net for p in block.forward_parameters())
    back = sum(p.numel() for n in net.trained for p in net.blocks[n].feedback_parameters())
    assert feedback in (None, back)


def test_counts_of_each_block():
    def counts(net):
        return [sum(p.numel() for p in block.forward_parameters()) for block in net]

    found = [3_584, 147_584, 295_168, 590_080, 1_180_160, 5_130]
    assert counts(dtp.network("simple_vgg")) == found
    assert sum(counts(dtp.network("simple_vgg", classes=1000))) == 2_729_576
    assert dtp.network("simple_vgg2").blocks[-1].pieces[1].weight.shape == (10, 2048)
    for options, features in (
        ({"padding": 0}, 3136),
        ({"padding": 1}, 4096),
        ({"channels": 1, "side": 28}, 3136),
    ):
        made = dtp.network("lenet", **options)
        assert made.blocks[2].pieces[1].weight.shape == (512, features)


@pytest.mark.parametrize("name", list(dtp.NETWORKS))
def test_feedback_gives_the_shape_back(name):
    net = dtp.network(name)
    assert len(net.trained) == (3 if name in ("lenet", "tiny") else 5)
    side = 16 if name == "tiny" else 32
    run = net.locally(torch.randn(2, 3, side, side))
    for block, x, s, notes in zip(net, run.inputs, run.s, run.notes, strict=True):
        assert block.feedback(s, notes).shape == x.shape
    assert run.s[-1].shape == (2, 10)


PIECES = [
    (Conv(3, 5), (2, 3, 8, 8)),
    (Conv(3, 5, stride=2), (2, 3, 8, 8)),
    (Conv(3, 5, stride=2), (2, 3, 9, 9)),
    (Conv(3, 5, 1, stride=2, padding=0), (2, 3, 8, 8)),
    (Conv(3, 5, 5, padding=2), (2, 3, 7, 7)),
    (Dense(6, 4), (2, 6)),
    (MaxPool(), (2, 3, 8, 8)),
    (MaxPool(), (2, 3, 9, 9)),
    (MaxPool(3, 2, 1), (2, 3, 8, 8)),
    (AvgPool(), (2, 3, 4, 4)),
    (AvgPool(2), (2, 3, 8, 8)),
    (Reshape(), (2, 3, 4, 4)),
    (Activation("elu"), (2, 3)),
]


@pytest.mark.parametrize(("piece", "shape"), PIECES, ids=lambda v: str(v)[:30])
def test_each_piece_maps_back(piece, shape):
    Block(piece).initialise(torch.Generator().manual_seed(0))
    y, note = piece(torch.randn(shape))
    assert piece.feedback(y, note).shape == shape


@pytest.mark.parametrize(
    ("piece", "shape"),
    [
        *PIECES[:6],
        (MaxPool(add=True), (2, 3, 8, 8)),
        (MaxPool(3, 2, 1, add=True), (2, 3, 9, 9)),
        (AvgPool(transpose=True), (2, 3, 4, 4)),
        (AvgPool(2, transpose=True), (2, 3, 8, 8)),
        (Reshape(), (2, 3, 4, 4)),
        (MaxPool(), (2, 3, 8, 8)),
    ],
    ids=lambda v: str(v)[:30],
)
def test_copied_feedback_is_the_transpose(piece, shape):
    """What backprop would send down."""
    piece = piece.double()
    block = Block(piece)
    block.initialise(torch.Generator().manual_seed(0))
    block.make_symmetric()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    y, note = piece(x)
    v = torch.randn_like(y)
    torch.testing.assert_close(piece.feedback(v, note), torch.autograd.grad(y, x, v)[0])


def test_what_was_published_is_not_the_transpose():
    for piece, x in (
        (AvgPool(), torch.randn(1, 1, 2, 2)),
        (MaxPool(3, 2, 1), torch.arange(25.0).view(1, 1, 5, 5).sin()),
    ):
        y, note = piece(x)
        jacobian = torch.autograd.functional.jacobian(lambda v, p=piece: p(v)[0], x)
        transposed = jacobian.reshape(y.numel(), -1).T @ y.flatten()
        assert not torch.allclose(piece.feedback(y, note).flatten(), transposed)


@pytest.mark.parametrize("name", ["elu", "tanh", "leaky_relu", "identity"])
def test_matched_activations(name):
    act = Activation(name, matched=True).double()
    z = torch.linspace(-3, 3, 41, dtype=torch.float64).requires_grad_()
    h, _ = act(z)
    slope = torch.autograd.grad(h.sum(), z)[0]
    back = h.detach().requires_grad_()
    found = torch.autograd.grad(act.feedback(back, None).sum(), back)[0]
    torch.testing.assert_close(found, slope)


def test_copies_share_no_memory_and_have_the_forward_s_jacobian():
    net = dtp.network("lenet")
    net.make_symmetric()
    for block in net:
        for part in block.affine():
            assert torch.equal(part.feedback_weight, part.transposed())
            assert part.feedback_weight.data_ptr() != part.weight.data_ptr()
            assert part.bias is None or not part.bias.any()
    assert weight_symmetry(net).distance.max() == 0
    net = dtp.network("tiny", switches=dtp.EXACT).double()
    x = torch.randn(1, 24, 8, 8, dtype=torch.float64)
    block = net.blocks[1]
    assert jacobian_angle(block, x) > 45
    block.make_symmetric()
    assert jacobian_angle(block, x) == pytest.approx(0, abs=1e-3)


def test_weights_are_those_of_torch():
    """The same bounds, in both directions."""
    net, again = (dtp.network("simple_vgg", seed=3) for _ in range(2))
    conv, fc = net.blocks[1].pieces[0], net.blocks[-1].pieces[1]
    bounds = [(conv.weight, 9 * 128), (conv.feedback_weight, 9 * 128)]
    for tensor, fan_in in [*bounds, (fc.weight, 512), (fc.feedback_weight, 10)]:
        assert float(tensor.detach().abs().max()) == pytest.approx(fan_in**-0.5, rel=0.01)
    assert not torch.equal(conv.weight, conv.feedback_weight)
    assert torch.equal(again.blocks[4].pieces[0].weight, net.blocks[4].pieces[0].weight)


# ---- lists and settings


def test_lists():
    assert aligned("sigma", 0.1, NAMES) == [0.1] * 3
    assert aligned("sigma", (1, 2, 3), NAMES) == [1, 2, 3]
    for wrong, lenient in (((1, 2), [1, 2, 2]), ((1, 2, 3, 4), [1, 2, 3])):
        with pytest.raises(ValueError, match=f"sigma has {len(wrong)} numbers and there are 3"):
            aligned("sigma", wrong, NAMES)
        with pytest.warns(UserWarning, match="it becomes"):
            assert aligned("sigma", wrong, NAMES, lenient=True) == lenient
    with pytest.raises(ValueError, match="none may be negative"):
        aligned("iterations", -1, NAMES)
    with pytest.raises(ValueError, match=r"0 numbers .* \(conv_1, conv_2, fc_3\)"):
        aligned("sigma", (), NAMES, lenient=True)


def fitted(**options):
    return lambda: alkit.fit(dtp.network("tiny"), made_set(), progress=False, **options)


REFUSED = [
    (fitted(method="gradient"), "unknown method 'gradient': give bp, al"),
    (fitted(form="fast"), "form is 'fast': give closed, autograd"),
    (fitted(index="both"), "index is 'both': give own, frozen"),
    (fitted(schedule="linear"), "schedule is 'linear'"),
    (fitted(batch=0), "batch is 0: it must be at least 1"),
    (fitted(iterations=(1, 2)), "iterations has 2 numbers and there are 3 trained feedbacks"),
    (fitted(owners=[0, 1, 0]), "owners is .*: give the rank, 0 to 0"),
    (fitted(owners=[0]), r"of each of 3 loops \(conv_1, conv_2, fc_3\)"),
    (lambda: dtp.network("vgg"), "network is 'vgg': give simple_vgg"),
    (lambda: dtp.network("simple_vgg", side=16), "pictures of side 16: 5 pools need 32"),
    (lambda: dtp.network("tiny", padding=0), "tiny has no padding: lenet alone"),
    (lambda: Block(Dense(3, 3), nn.LayerNorm(3)), "LayerNorm has no feedback: take Conv"),
    (lambda: Activation("relu", matched=True), "no feedback matches relu: take elu, tanh"),
    (lambda: Block(Dense(3, 3), Dense(3, 3)).psi(torch.zeros(1), []), "form='autograd'"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_not_finite_is_named():
    with pytest.raises(FloatingPointError, match="feedback loss of conv_1 .* lower feedback_lr"):
        fitted(feedback_lr=1e6, iterations=30, sigma=1.0)()


# ---- rates, metrics, presets


def test_rates():
    cosine = [rate("cosine", 0.05, step, 0, 100) for step in (0, 50, 100)]
    assert cosine == pytest.approx([0.05, 0.025, 0])
    published = [rate("cosine_published", 0.05, 0, epoch, 1) for epoch in (0, 85, 89)]
    assert published == pytest.approx([0.05, 1e-5, 2.8e-4], rel=0.01)
    steps = [rate("step", 0.01, 0, epoch, 1) for epoch in (29, 30, 60)]
    assert steps == pytest.approx([0.01, 1e-3, 1e-4])
    assert rate("none", 0.3, 5, 5, 9) == 0.3


def test_metrics():
    x = torch.randn(4, 5)
    assert angles.angle(x, x) == pytest.approx(0, abs=1e-5)
    assert angles.angle(x, -3 * x) == pytest.approx(180, abs=1e-5)
    assert angles.angle(x, 7 * x) == pytest.approx(0, abs=1e-5)
    assert angles.angle(torch.zeros(3), torch.ones(3)) == 90
    for seed in range(200):  # some of these cosines are above 1, by rounding
        own = torch.randn(7, generator=torch.Generator().manual_seed(seed))
        assert not math.isnan(angles.angle(own, own))


def jacobian_angle(block, x):
    """Return the angle between the feedback's Jacobian and the forward map's, transposed."""
    with torch.no_grad():
        y, notes = block(x)
    forward = torch.autograd.functional.jacobian(lambda v: block(v)[0], x)
    back = torch.autograd.functional.jacobian(lambda v: block.feedback(v, notes), y)
    j_f = forward.reshape(y.numel(), x.numel())
    return angles.angle(j_f.T, back.reshape(x.numel(), y.numel()))


def test_published_rates_follow_the_rule():
    net, own = dtp.network("simple_vgg"), PRESETS["cifar10_dtp"].settings
    rates = feedback_rates(net, torch.zeros(1, 3, 32, 32), own.sigma, 1.0)
    shares = [lr / unit for lr, unit in zip(own.feedback_lr, rates, strict=True)]
    assert shares == pytest.approx([2.0e-3, 1.8e-3, 2.6e-3, 6.4e-4, 2.3e-3], rel=0.05)
    tiny = PRESETS["tiny"]
    found = feedback_rates(tiny.net(), torch.zeros(1, 3, 16, 16), tiny.settings.sigma, 5e-3)
    assert found == pytest.approx(list(tiny.settings.feedback_lr))


@pytest.mark.parametrize("name", list(PRESETS))
def test_presets_fit_their_networks(name):
    preset = PRESETS[name]
    net = preset.net()
    own = preset.settings
    assert len(own.lists([net.label(n) for n in net.trained]).sigma) == len(net.trained)
    assert (own.batch, own.beta) == (256, 0.4655) or own.beta == 0.7
