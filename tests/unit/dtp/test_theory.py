"""When target propagation is backprop: equalities to rounding, and where the original's fail."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from alkit.dtp import Block, Net, Settings, learning, network
from alkit.dtp.block import Pass
from alkit.dtp.learning import BlockFeedback, draw, noise_for
from alkit.dtp.targets import output_target
from studies.dtp.angles import compare, gradients, targets
from tests.unit.dtp.helpers import batch, exact_net, linear_block


def best_multiple(net, n, x, sigma, index, draws=4):
    """Return the multiple of the copied weight that L-DRL likes best as block n's feedback."""
    (inputs, s, notes, _), generator = net.locally(x)[n], noise_for(0, 0, n)
    block = net.blocks[n]
    top = bottom = 0.0
    with torch.no_grad():
        base = block.feedback(s, notes)
        for _ in range(draws):
            dx, dy = draw(inputs, sigma, generator), draw(s, sigma, generator)
            noisy, own = block(inputs + dx)
            forward = block.feedback(noisy, own if index == "own" else notes) - base
            top += float((dx * forward).sum())
            bottom += float((block.feedback(s + dy, notes) - base).square().sum())
    return top / bottom


def worst(net, beta, blocks=slice(None), **options):
    """Return the largest relative difference of the blocks' gradients."""
    made, true = gradients(net, *batch(), beta, **options)
    pairs = [
        (a, b)
        for own, other in list(zip(made, true, strict=True))[blocks]
        for a, b in zip(own, other, strict=True)
    ]
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


@pytest.mark.parametrize("beta", [1e-3, 0.7])
def test_the_last_block_learns_as_by_backprop_and_the_one_below_with_copied_weights(beta):
    assert worst(exact_net("lenet"), beta, slice(-1, None)) < 1e-12
    net = exact_net("simple_vgg")
    assert worst(net, beta, slice(-2, -1)) > 0.1
    net.blocks[-1].make_symmetric()
    assert worst(net, beta, slice(-2, -1)) < 1e-12


def test_all_blocks_do_without_activation_and_leaky_units_with_a_small_beta():
    net = exact_net("simple_vgg", activation=nn.Identity)
    net.make_symmetric()
    assert worst(net, 0.5) < 1e-10
    net = exact_net("simple_vgg", activation=partial(nn.LeakyReLU, 0.1))
    net.make_symmetric()
    assert worst(net, 1e-4) < 1e-6
    assert compare(net, *batch(), 0.5).angle.max() > 3


@pytest.mark.parametrize("name", ["simple_vgg", "lenet"])
def test_matched_feedback_errs_as_beta(name):
    net = exact_net(name, matched=True, add=True)
    net.make_symmetric()
    coarse, fine = worst(net, 5e-3), worst(net, 1e-5)
    assert fine < 1e-6
    assert coarse / fine == pytest.approx(500, rel=0.2)


def test_published_feedback_has_a_floor():
    net = exact_net("simple_vgg")
    net.make_symmetric()
    coarse, fine = (compare(net, *batch(), beta).angle for beta in (1e-3, 1e-5))
    assert 0.1 < fine[0] < 3
    assert fine[0] == pytest.approx(coarse[0], rel=0.1)
    assert list(fine) == sorted(fine, reverse=True)
    assert fine.iloc[-2:].max() < 1e-5


@pytest.mark.parametrize("beta", [0.5, 1e-4])
def test_relu_never_matches(beta):
    net = exact_net("simple_vgg", activation=nn.ReLU)
    net.make_symmetric()
    angles = compare(net, *batch(), beta).angle
    assert angles[0] > 40
    assert angles.iloc[-2:].max() < 1e-5


def test_overlapping_windows_must_be_added():
    for activation in (nn.Identity, nn.ELU):
        net = exact_net("lenet", activation=activation)
        net.make_symmetric()
        assert compare(net, *batch(), 1e-4).angle[0] > 20
    net = exact_net("lenet", activation=nn.Identity, add=True)
    net.make_symmetric()
    assert worst(net, 0.5) < 1e-10


def test_both_orders_of_pool_and_activation_are_one_map():
    """As published the activation comes before the pool; forward and feedback are the same."""
    x, _ = batch()
    for name, n in (("simple_vgg", 0), ("lenet", 0)):
        block = exact_net(name).blocks[n]
        conv, pool, act = block.pieces
        published = Block(conv, act, pool)
        (y, notes), (other, others) = block(x), published(x)
        assert torch.equal(y, other)
        v = torch.randn_like(y)
        assert torch.equal(block.feedback(v, notes), published.feedback(v, others))


# ---- the losses


def test_loss_of_a_linear_map_is_a_distance_from_its_transpose():
    draws = torch.Generator().manual_seed(0)
    w, b = (torch.randn(shape, generator=draws, dtype=torch.float64) for shape in ((3, 4), (4, 3)))
    block, sigma = linear_block(w, b), 0.3
    # one sample a direction: {+-sigma sqrt(d) e_j} has exactly the covariance sigma^2 I
    dx = torch.cat([torch.eye(4), -torch.eye(4)]).double() * sigma * 2
    dy = torch.cat([torch.eye(3), -torch.eye(3)]).double() * sigma * 3**0.5
    dx, dy = dx.repeat_interleave(6, 0), dy.repeat(8, 1)
    x = torch.randn(48, 4, generator=draws, dtype=torch.float64)
    y, notes = block(x)
    loss = learning.l_drl(block, Pass(x, y.detach(), notes), dx, dy)
    wanted = sigma**2 * ((b - w.T).square().sum() - w.square().sum())
    assert float(loss.detach()) == pytest.approx(float(wanted), rel=1e-12)
    grad = torch.autograd.grad(loss, block.feedback_parameters())[0]
    torch.testing.assert_close(grad, 2 * sigma**2 * (b - w.T), rtol=1e-12, atol=1e-13)


def test_gaussian_noise_gives_the_same_loss():
    block = linear_block(torch.tensor([[1.0, 2.0], [0.5, -1.0]]).double(), torch.eye(2).double())
    x = torch.zeros(200_000, 2, dtype=torch.float64)
    y, notes = block(x)
    draws = noise_for(0, 0, 1)
    loss = learning.l_drl(block, Pass(x, y, notes), draw(x, 1.0, draws), draw(y, 1.0, draws))
    w = block.pieces[0].own.weight
    wanted = (torch.eye(2) - w.T).square().sum() - w.square().sum()
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), abs=0.06)


def solved(block, loss):
    """Return the weight where a loss that is quadratic in it has no gradient."""
    weight = block.feedback_parameters()[0]
    kept = weight.detach().clone()
    gradient = torch.autograd.grad(loss(), weight)[0].flatten()
    columns = []
    for at in range(weight.numel()):
        with torch.no_grad():
            weight.view(-1)[at] += 1
        columns.append(torch.autograd.grad(loss(), weight)[0].flatten() - gradient)
        with torch.no_grad():
            weight.copy_(kept)
    return kept - torch.linalg.solve(torch.stack(columns, 1), gradient).view_as(kept)


@pytest.mark.parametrize("rotation", [False, True])
def test_what_each_loss_has_its_minimum_at(rotation):
    draws = torch.Generator().manual_seed(1)
    w = torch.randn(3, 3, generator=draws, dtype=torch.float64)
    w = torch.linalg.qr(w).Q if rotation else w + 2 * torch.eye(3)
    block = linear_block(w)
    x = torch.zeros(4000, 3, dtype=torch.float64)
    y, notes = block(x)
    dx = torch.cat([torch.eye(3), -torch.eye(3)]).double().repeat(3, 1)
    dy, few = torch.eye(3).double().repeat(6, 1), x[:18]
    dx, dy = dx[:18], torch.cat([dy[:9], -dy[:9]])
    clean = Pass(few, y[:18].detach(), notes)
    l_drl = solved(block, lambda: learning.l_drl(block, clean, dx, dy))
    rebuilt = solved(block, lambda: learning.reconstruction(block, clean, dx))
    torch.testing.assert_close(l_drl, w.T, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(rebuilt, torch.linalg.inv(w), rtol=1e-9, atol=1e-9)
    assert torch.allclose(l_drl, rebuilt) == rotation


def test_inverse_feedback_gives_gauss_newton_targets():
    draws = torch.Generator().manual_seed(2)
    net = network("tiny", channels=3).double()
    w = torch.randn(4, 4, generator=draws, dtype=torch.float64) + 3 * torch.eye(4)
    net.blocks = torch.nn.ModuleList(
        [linear_block(torch.eye(4).double()), linear_block(w, torch.linalg.inv(w))]
    )
    x = torch.randn(5, 4, generator=draws, dtype=torch.float64)
    run, delta = net.locally(x), torch.randn(5, 4, generator=draws, dtype=torch.float64)
    inverse = delta @ torch.linalg.inv(w).T
    for rule in ("difference", "plain"):  # they agree, for G undoes F
        torch.testing.assert_close(targets(net, run, delta, rule)[0], inverse)
    net.make_symmetric()
    torch.testing.assert_close(targets(net, run, delta)[0], delta @ w)
    assert not torch.allclose(targets(net, run, delta, "plain")[0], delta @ w)


def local_losses(deltas):
    """Return each block's loss, 1/2 mean |delta|^2."""
    return [delta.square().sum() / (2 * len(delta)) for delta in deltas]


def test_without_a_target_nothing_is_learnt():
    net = exact_net("lenet")
    x, y = batch()
    run = net.locally(x)
    last = output_target(run[-1].s, y, 0.0)
    assert all(loss == 0 for loss in local_losses(targets(net, run, last)))
    assert max(local_losses(targets(net, run, last, "plain"))) > 0


def test_losses_are_local():
    net = exact_net("lenet")
    x, y = batch()
    run = net.locally(x)
    deltas = targets(net, run, output_target(run[-1].s, y, 0.7))
    parameters = [p for block in net for p in block.forward_parameters()]
    each = [
        (own.s - (own.s + delta).detach()).square().sum() / (2 * len(x))
        for own, delta in zip(run, deltas, strict=True)
    ]
    whole = torch.autograd.grad(sum(each), parameters, retain_graph=True)
    for at, (block, loss) in enumerate(zip(net, each, strict=True)):
        own = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        mine = {id(p) for p in block.forward_parameters()}
        for parameter, alone, summed in zip(parameters, own, whole, strict=True):
            if id(parameter) in mine:
                assert torch.equal(alone, summed)
            else:
                assert alone is None, at


FORMS = [("simple_vgg", n) for n in range(1, 6)] + [("lenet", n) for n in range(1, 4)]


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


def test_a_bias_in_the_feedback_would_learn_nothing():
    (block,) = Net([Block(nn.Linear(4, 3), nn.ELU())]).double()
    bias = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    plain = block.feedback
    block.feedback = lambda *given: plain(*given) + bias
    x = torch.randn(6, 4, dtype=torch.float64)
    y, notes = block(x)
    clean, noise = Pass(x, y.detach(), notes), (torch.randn_like(x), torch.randn_like(y))
    loss = learning.l_drl(block, clean, *noise)
    assert torch.autograd.grad(loss, bias)[0].abs().max() < 1e-14


@pytest.mark.parametrize("index", ["own", "frozen"])
def test_own_places_make_feedback_too_large(index):
    """The best multiple of W as B: nearly 2 with the noisy pass' places, 1 with the clean ones."""
    net = exact_net("simple_vgg", matched=True)
    net.make_symmetric()
    x, _ = batch(size=6)
    for n, sigma in ((1, 0.4), (2, 0.4), (3, 0.2), (4, 0.2)):
        for share in (1.0, 0.1):
            found = best_multiple(net, n, x, sigma * share, index)
            if index == "own":
                assert 1.4 < found < 2.2
            else:
                assert (0.4 if share == 1 else 0.85) < found < 1.05


def test_feedback_learning_leaves_forward_weights_alone():
    net = exact_net("lenet")
    before = copy.deepcopy([p for block in net for p in block.forward_parameters()])
    feedback = BlockFeedback(net, Settings(iterations=3, feedback_lr=1e-3))
    kept = {n: net.blocks[n].feedback_parameters()[0].detach().clone() for n in feedback.loops}
    run = net.locally(batch()[0])
    for n in feedback.loops:
        assert feedback.learn(n, run[n], 0).shape == (3,)
        assert not torch.equal(net.blocks[n].feedback_parameters()[0], kept[n])
    after = [p for block in net for p in block.forward_parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_samples_are_averaged():
    """A batch repeated three times with noise of its own is the mean over three draws."""
    net = exact_net("lenet")
    x, _ = batch()
    for form in ("closed", "autograd"):
        settings = Settings(form=form, samples=3, iterations=1, sigma=0.2, feedback_lr=1e-3)
        feedback = BlockFeedback(net, settings)
        repeated, draws = feedback.clean(1, net.locally(x)[1]), noise_for(0, 0, 1)
        _, found = feedback.gradient(1, repeated, noise_for(0, 0, 1))
        dx, dy = draw(repeated.x, 0.2, draws), draw(repeated.s, 0.2, draws)
        clean, mean = net.locally(x)[1], torch.zeros_like(found[0])
        for at in range(3):
            mean += learning.l_drl_by_hand(net.blocks[1], clean, dx[at::3], dy[at::3])[1] / 3
        torch.testing.assert_close(found[0], mean, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("numbers", [False, True])
def test_any_loss_gives_the_output_its_target(numbers):
    """Cross-entropy in other words has the closed form's; squared errors have their derivative."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    classes = torch.tensor([0, 3, 1, 2, 2, 0])
    y = torch.nn.functional.one_hot(classes, 4).double()
    own = lambda out, given: torch.nn.functional.cross_entropy(out, given)  # noqa: E731
    found = output_target(scores, classes if numbers else y, 0.3, own)
    torch.testing.assert_close(found, output_target(scores, y, 0.3))
    squared = output_target(scores, y, 0.3, torch.nn.functional.mse_loss)
    torch.testing.assert_close(squared, -0.3 * 2 * (scores - y) / 4)
