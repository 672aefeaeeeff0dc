"""Labels of all kinds: the shortcut's gradients, fixed codes, contrasts, soft labels, heads."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit import one_hot, to_local, train_epoch
from alkit.al.codes import (
    Codes,
    Contrast,
    FixedDecoder,
    FixedEncoder,
    class_codes,
    code_table,
    shared,
)
from tests.helpers import CLASSES, CODE, WIDTH, dense_model


def _gradients(model, x, y):
    for layer in model:
        x, y = layer(x, y)
        layer.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


# every class with unequal counts: plain rows then show the contrast the same classes
EVERY = torch.tensor([0, 1, 2, 2, 2, 0, 2, 2, 1])
LOSSES = (F.cross_entropy, F.mse_loss, F.binary_cross_entropy_with_logits)


@pytest.mark.parametrize(
    ("associated", "first", "labels"),
    [
        *((own, first, EVERY) for own in (F.mse_loss, Contrast(5.0)) for first in LOSSES),
        (F.mse_loss, F.cross_entropy, torch.tensor([0, 0, 2, 0])),  # one class is not there
    ],
)
def test_shortcut_gives_the_gradients_of_the_plain_form(associated, first, labels):
    model = dense_model(3, dropout=0.0, batch_norm=False)
    model[0].ae.loss_fn = first
    for layer in model:
        layer.enc.loss_fn = associated
    x, y = torch.randn(len(labels), WIDTH), one_hot(labels, CLASSES)
    plain, losses = _gradients(model, x, y), model.loss()
    assert isinstance(shared(y), Codes)
    torch.testing.assert_close(_gradients(model, x, shared(y)), plain, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(model.loss(), losses)
    model.label_shortcut = True
    assert model(x, y)[1].shape == (len(y), CODE)


@pytest.mark.parametrize("soft", [[[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]], [[1.0, 0.0, 1.0]]])
def test_soft_labels_take_the_plain_way(soft):
    assert shared(soft := torch.tensor(soft)) is soft


def test_code_table():
    table = code_table(6, 16)
    torch.testing.assert_close(table @ table.T, torch.eye(6), atol=1e-6, rtol=0)
    assert torch.equal(table, code_table(6, 16))
    assert not torch.equal(table, code_table(6, 16, seed=1))
    torch.testing.assert_close(code_table(30, 8).norm(dim=1), torch.ones(30))
    table = code_table(200, 64)
    g, h = FixedEncoder(table), FixedDecoder(table, 10.0)
    assert torch.equal(h(g(torch.eye(200))).argmax(1), torch.arange(200))
    assert not list(g.parameters())


def test_contrast_is_cross_entropy_over_cosines():
    rows, m, index = torch.rand(3, 5), torch.randn(8, 5), torch.arange(8) % 3
    expected = {}
    for centred in (False, True):  # a mean that all codes share is no evidence for any class
        own = Contrast(7.0, centred=centred)
        seen = rows - rows.mean(0) if centred else rows
        scores = 7 * F.cosine_similarity(m[:, None], seen[None], dim=2)
        expected[centred] = F.cross_entropy(scores, index)
        torch.testing.assert_close(own(m, Codes(rows, index)), expected[centred])
        torch.testing.assert_close(own.scores(m, rows + 3.0 * centred), scores)
    # plain rows: the distinct ones are the classes
    torch.testing.assert_close(Contrast(7.0)(m, rows[index]), expected[False])
    assert class_codes(rows[index]).rows.shape == (3, 5)
    product = Contrast(1.0, cosine=False, smoothing=0.1)
    smoothed = F.cross_entropy(m @ rows.T, index, label_smoothing=0.1)
    torch.testing.assert_close(product(m, Codes(rows, index)), smoothed)


X = torch.zeros(2, WIDTH)


def _blocks(dtype=torch.float32):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()).to(dtype) for _ in range(2)]


def _fixed():
    return to_local(_blocks(), CLASSES, X, rule="fixed_codes")


def _soft(count=8):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, WIDTH, generator=generator)
    share = torch.rand(count, 1, generator=generator)
    classes = torch.arange(count) % CLASSES
    y = share * one_hot(classes, CLASSES) + (1 - share) * one_hot(classes.roll(1), CLASSES)
    return x, y


@pytest.mark.parametrize("mode", ["local", "local_pipeline"])
def test_soft_labels_under_fixed_codes_are_soft_cross_entropy(mode):
    model = _fixed()
    x, y = _soft()
    expected, s = [], x
    for layer in copy.deepcopy(model):
        s, m = layer.enc(s)
        table = model[0].ae.g.table
        loss = layer.enc.loss_fn
        log_p = (loss.scale * F.normalize(m, dim=1) @ F.normalize(table, dim=1).T).log_softmax(1)
        target = (1 - loss.smoothing) * y + loss.smoothing / CLASSES
        expected.append(-(target * log_p).sum(1).mean())
    found = train_epoch(model, [(x, y)], mode, 1).losses[0, :, 0]
    torch.testing.assert_close(found, torch.stack(expected).detach())
    _, t = model[0](x, shared(y, soft=True))
    torch.testing.assert_close(t.gathered(), y @ model[0].ae.g.table)
