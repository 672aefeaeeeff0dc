"""Pieces, blocks and networks: what training is put together from; and what is refused."""

import pytest
import torch
from torch import nn

import alkit
from alkit import dtp
from alkit.dtp import Block
from alkit.dtp.learning import draw, noise_for
from alkit.dtp.settings import aligned
from tests.unit.dtp.helpers import made_set

LOOPS = {1: "conv_1", 2: "conv_2", 3: "fc_3"}


PIECES = [
    (nn.Conv2d(3, 5, 3, stride=2, padding=1), (2, 3, 8, 8)),
    (nn.Conv2d(3, 5, 3, stride=2, padding=1), (2, 3, 9, 9)),
    (nn.Conv2d(3, 5, 1, stride=2), (2, 3, 8, 8)),
    (nn.Conv2d(4, 6, (3, 5), (2, 1), (1, 0), dilation=(1, 2), groups=2), (2, 4, 9, 12)),
    (nn.Linear(6, 4), (2, 6)),
    (nn.MaxPool2d(2), (2, 3, 8, 8)),
    (nn.MaxPool2d(2), (2, 3, 9, 9)),
    (nn.MaxPool2d(3, 2, 1), (2, 3, 9, 9)),
    (nn.MaxPool2d((3, 2), 2, ceil_mode=True), (2, 3, 8, 7)),
    (nn.AdaptiveAvgPool2d(1), (2, 3, 4, 4)),
    (nn.AdaptiveAvgPool2d((2, 4)), (2, 3, 8, 8)),
    (nn.Flatten(), (2, 3, 4, 4)),
]


@pytest.mark.parametrize(("module", "shape"), PIECES, ids=lambda v: str(v)[:60])
def test_copied_feedback_is_the_transpose(module, shape):
    """What backprop would send down; the closed form's gradient by B is autograd's."""
    (block,) = dtp.Net([Block(module, switches=dtp.EXACT)]).double()
    block.make_symmetric()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    y, notes = block(x)
    assert torch.equal(y, module(x))
    v = torch.randn_like(y)
    torch.testing.assert_close(block.feedback(v, notes), torch.autograd.grad(y, x, v)[0])
    for piece in block.affine:
        assert piece.back.weight.data_ptr() != piece.own.weight.data_ptr()
        assert not piece.own.bias.any()
        outer, product = torch.randn_like(x), block.feedback(v, notes)
        wanted = torch.autograd.grad((outer * product).sum(), piece.back.weight)[0]
        torch.testing.assert_close(piece.feedback_gradient(outer, v), wanted)


POOLS = [(nn.AdaptiveAvgPool2d(1), 2, False), (nn.MaxPool2d(3, 2, 1), 5, False)]
POOLS += [(nn.MaxPool2d(2), 5, True)]


@pytest.mark.parametrize(("module", "side", "exact"), POOLS)
def test_published_pools_are_transposes_only_of_maxima_that_do_not_overlap(module, side, exact):
    block, x = Block(module), torch.arange(1.0 * side**2).view(1, 1, side, side).sin()
    y, notes = block(x)
    jacobian = torch.autograd.functional.jacobian(lambda v: block(v)[0], x)
    transposed = jacobian.reshape(y.numel(), -1).T @ y.flatten()
    assert torch.allclose(block.feedback(y, notes).flatten(), transposed) == exact


def test_an_activation_in_place_leaves_what_others_read():
    block, plain, z = Block(nn.ELU(inplace=True)), Block(nn.ELU()), torch.randn(5)
    kept, (h, notes) = z.clone(), block(z)
    before = h.clone()
    assert torch.equal(block.feedback(h, notes), plain.feedback(before, notes))
    assert torch.equal(z, kept)
    assert torch.equal(h, before)


class Doubled(dtp.Piece):
    def forward(self, x):
        return 2 * self.own(x), None

    def feedback(self, y, note):
        return 2 * self.own(y)


def test_a_piece_of_one_s_own():
    block, z = Block(nn.Linear(3, 3), Doubled(nn.Tanh())), torch.randn(2, 3)
    assert torch.equal(block(z)[0], 2 * block.pieces[0].own(z).tanh())


HOOKED = nn.Linear(3, 3)
HOOKED.register_forward_hook(print)
NONE = [nn.BatchNorm2d(1), nn.Dropout(0.1), nn.Conv2d(1, 4, 3, padding="same"), nn.Flatten(2)]
NONE += [nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular")]


@pytest.mark.parametrize("module", NONE, ids=str)
def test_what_has_no_inverse_is_named(module):
    with pytest.raises(dtp.NoInverse, match="in block 1 has no inverse here: take AdaptiveAvgPool"):
        dtp.from_blocks([nn.Conv2d(1, 1, 3), nn.Sequential(nn.ELU(), module), nn.Linear(8, 3)])


def fitted(**options):
    return lambda: alkit.fit(dtp.network("tiny"), made_set(), progress=False, **options)


REFUSED = [
    (fitted(form="fast"), "form is 'fast': give closed, autograd"),
    (fitted(index="both"), "index is 'both': give own, frozen"),
    (fitted(samples=0), "samples is 0: it must be at least 1"),
    (lambda: aligned("sigma", (1, 2), LOOPS), r"sigma has 2 numbers and there are 3 .*conv_1"),
    (lambda: aligned("sigma", (0.1, -0.1, 0.1), LOOPS), "none may be negative"),
    (lambda: Block(HOOKED), "has hooks"),
    (lambda: Block(nn.ReLU(), switches=dtp.EXACT), "no feedback matches ReLU: take ELU"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_not_finite_is_named():
    with pytest.raises(FloatingPointError, match="feedback loss of conv_1 .* lower feedback_lr"):
        fitted(feedback_lr=1e6, iterations=30, sigma=1.0)()


def test_noise_is_a_function_of_its_key():
    def drawn(*key):
        noise = noise_for(*key)
        return [draw(torch.zeros(5, 3), 0.5, noise) for _ in range(3)]

    first, again = drawn(0, 1, 2), drawn(0, 1, 2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[2])
    many = draw(torch.zeros(99_999), 0.5, noise_for(0, 0, 1))
    assert float(many.std()) == pytest.approx(0.5, abs=0.01)
    for other in ((1, 1, 2), (0, 2, 2), (0, 1, 3)):
        assert not torch.equal(drawn(*other)[0], first[0])
