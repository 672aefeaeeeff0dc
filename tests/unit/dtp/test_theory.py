"""When target propagation is backprop: equalities to rounding, and where the original's fail."""

from functools import partial

import pytest
import torch
from torch import nn

from alkit.dtp import Net, learning
from alkit.dtp.learning import draw, noise_for
from alkit.dtp.targets import output_target
from studies.dtp import runs as dtp_training
from studies.dtp.angles import compare, gradients, targets
from studies.dtp.presets import PRESETS
from tests.unit.dtp.helpers import batch, exact_net, linear_block

EXACT = {"matched": True, "add": True}
LEAKY = partial(nn.LeakyReLU, 0.1)


def symmetric(*name, **options):
    """Return a network whose feedback weights are copies of the forward ones."""
    net = exact_net(*name, **options)
    net.make_symmetric()
    return net


def worst(net, beta, blocks=slice(None)):
    """Return the largest relative difference of the blocks' gradients."""
    made, true = (sum(own[blocks], []) for own in gradients(net, *batch(), beta))
    return max(float((a - b).norm() / b.norm()) for a, b in zip(made, true, strict=True))


@pytest.mark.parametrize(
    ("name", "activation", "switches", "beta", "error"),
    [
        ("simple_vgg", nn.Identity, {}, 0.5, 1e-10),
        ("lenet", nn.Identity, {"add": True}, 0.5, 1e-10),
        ("simple_vgg", LEAKY, {}, 1e-4, 1e-6),
        ("simple_vgg", nn.ELU, EXACT, 1e-5, 1e-6),
        ("simple_vgg", nn.Tanh, EXACT, 1e-5, 1e-6),
        ("lenet", nn.ELU, EXACT, 1e-5, 1e-6),
    ],
)
def test_copied_weights_give_backprop_s_gradient(name, activation, switches, beta, error):
    net = symmetric(name, activation=activation, **switches)
    assert worst(net, beta) < error
    if switches == EXACT:  # it errs as beta
        assert worst(net, 500 * beta) / worst(net, beta) == pytest.approx(500, rel=0.2)


def test_loss_of_a_linear_map_is_a_distance_from_its_transpose():
    draws = torch.Generator().manual_seed(0)
    w, b = (torch.randn(shape, generator=draws, dtype=torch.float64) for shape in ((3, 4), (4, 3)))
    block, sigma = linear_block(w, b), 0.3
    # one sample a direction: {+-sigma sqrt(d) e_j} has exactly the covariance sigma^2 I
    dx = torch.cat([torch.eye(4), -torch.eye(4)]).double() * sigma * 2
    dy = torch.cat([torch.eye(3), -torch.eye(3)]).double() * sigma * 3**0.5
    dx, dy = dx.repeat_interleave(6, 0), dy.repeat(8, 1)
    x = torch.randn(48, 4, generator=draws, dtype=torch.float64)
    loss = learning.l_drl(block, block.locally(x), dx, dy)
    wanted = sigma**2 * ((b - w.T).square().sum() - w.square().sum())
    assert float(loss.detach()) == pytest.approx(float(wanted), rel=1e-12)
    grad = torch.autograd.grad(loss, block.feedback_parameters())[0]
    torch.testing.assert_close(grad, 2 * sigma**2 * (b - w.T), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("rotation", [False, True])
def test_each_loss_has_no_gradient_at_its_minimum_alone(rotation):
    draws = torch.Generator().manual_seed(1)
    w = torch.randn(3, 3, generator=draws, dtype=torch.float64)
    w = torch.linalg.qr(w).Q if rotation else w + 2 * torch.eye(3)
    dx = torch.cat([torch.eye(3), -torch.eye(3)]).double().repeat(3, 1)
    dy = torch.cat([torch.eye(3).repeat(3, 1), -torch.eye(3).repeat(3, 1)]).double()
    least = {"l_drl": w.T, "reconstruction": torch.linalg.inv(w)}
    for at in least.values():
        block = linear_block(w, at)
        own = block.locally(torch.zeros_like(dx))
        for name, (loss, _) in learning.LOSSES.items():
            noise = (dx, dy) if name == "l_drl" else (dx,)
            found = torch.autograd.grad(loss(block, own, *noise), block.feedback_parameters())[0]
            assert (found.abs().max() < 1e-12) == (rotation or at is least[name])


def test_inverse_feedback_gives_gauss_newton_targets():
    w = torch.randn(4, 4, dtype=torch.float64) + 3 * torch.eye(4)
    net = Net([linear_block(torch.eye(4).double()), linear_block(w)], given=True)
    net.blocks[1].feedback_parameters()[0].data = torch.linalg.inv(w)
    x, delta = torch.randn(2, 5, 4, dtype=torch.float64)
    run, inverse = net.locally(x), delta @ torch.linalg.inv(w).T
    for rule in ("difference", "plain"):  # they agree, for G undoes F
        torch.testing.assert_close(targets(net, run, delta, rule)[0], inverse)
    net.make_symmetric()
    torch.testing.assert_close(targets(net, run, delta)[0], delta @ w)
    assert not torch.allclose(targets(net, run, delta, "plain")[0], delta @ w)


FORMS = [("simple_vgg", 1), ("simple_vgg", 5), ("lenet", 1), ("lenet", 2)]


@pytest.mark.parametrize(("name", "n"), FORMS)
@pytest.mark.parametrize("index", ["own", "frozen"])
@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_the_closed_form_is_the_gradient(name, n, index, kind):
    net = exact_net(name, matched=index == "frozen", add=index == "frozen").to(kind)
    block, clean = net.blocks[n], net.locally(batch()[0].to(kind))[n]
    draws = noise_for(0, 0, n)
    noise = [draw(clean.x, 0.2, draws), draw(clean.s, 0.2, draws)]
    rtol = 1e-12 if kind == torch.float64 else 1e-5
    for loss, (by_autograd, by_hand) in learning.LOSSES.items():
        own = noise if loss == "l_drl" else noise[:1]
        slow, fast = (of(block, clean, *own, index=index) for of in (by_autograd, by_hand))
        wanted = torch.autograd.grad(slow, block.feedback_parameters())[0]
        assert float((wanted - fast[1]).norm() / wanted.norm()) < rtol
        assert float(fast[0]) == pytest.approx(float(slow.detach()), rel=1e3 * rtol, abs=1e3 * rtol)


def test_any_loss_gives_the_output_its_target():
    """Cross-entropy in other words has the closed form's; squared errors have their derivative."""
    classes = torch.tensor([0, 3, 1, 2, 2, 0])
    scores = torch.randn(6, 4, dtype=torch.float64)
    y = torch.nn.functional.one_hot(classes, 4).double()
    own = lambda out, given: torch.nn.functional.cross_entropy(out, given)  # noqa: E731
    for given in (classes, y):
        found = output_target(scores, given, 0.3, own)
        torch.testing.assert_close(found, output_target(scores, y, 0.3))
    squared = output_target(scores, y, 0.3, torch.nn.functional.mse_loss)
    torch.testing.assert_close(squared, -0.3 * 2 * (scores - y) / 4)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dtp_follows_backprop(seed):
    """On digits, which takes some minutes."""
    data = PRESETS["tiny_digits"].load(train=1000, test=360)
    names = "bp", "dtp", "dtp_fixed"
    made = {name: dtp_training.trained(name, "tiny_digits", data, seed) for name in names}
    held = next(iter(data.validation.batches(256, shuffle=False)))
    angles = {name: compare(made[name].model, *held).angle for name in names[1:]}
    assert made["dtp"].test_acc > made["bp"].test_acc - 0.03
    assert angles["dtp"].max() < 25
    assert angles["dtp_fixed"][:3].min() > 60
    # 7.0, 11.1 and 10.3 points behind with these seeds
    assert made["dtp_fixed"].test_acc < made["dtp"].test_acc - 0.05
