"""The label-side shortcut gives the gradients of the plain form; fixed codes are exact."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit import AE, AL, ENC, ALModel, one_hot, to_al, train_epoch
from alkit.al.codes import (
    Codes,
    Contrast,
    FixedDecoder,
    FixedEncoder,
    class_codes,
    code_table,
    shared,
)
from alkit.al.recipes import FIXED_CODES, find_recipe
from alkit.al.rules import to_local
from tests.helpers import CLASSES, WIDTH, dense_model, differences, made_batches
from tests.make import tanh_blocks


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


def test_label_side_runs_once_a_class():
    seen = []
    model = dense_model(1)
    model[0].ae.g.register_forward_hook(lambda module, given, out: seen.append(len(given[0])))
    x, y = torch.randn(50, WIDTH), one_hot(torch.arange(50) % CLASSES, CLASSES)
    _, t = model[0](x, shared(y))
    assert seen == [CLASSES]
    assert isinstance(t, Codes)
    assert not t.rows.requires_grad
    model.label_shortcut = True
    assert model(x, y)[1].shape == (50, t.rows.shape[1])


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


def test_a_recipe_says_whether_codes_are_centred_and_coupled():
    learned = replace(find_recipe("mse", "texts"), associated="contrast", centred=True)
    for coupled in (True, False):
        recipe = replace(learned, coupled=coupled)
        layer = to_al([nn.Linear(WIDTH, 4)], CLASSES, torch.zeros(2, WIDTH), recipe=recipe)[0]
        assert layer.coupled == coupled
        assert layer.enc.loss_fn.centred


def test_fixed_decoder_gives_the_logits_of_the_contrast():
    recipe = FIXED_CODES["images"]  # that of texts smooths the labels
    model = to_al([nn.Linear(WIDTH, WIDTH)], CLASSES, torch.zeros(2, WIDTH), recipe=recipe)
    x, labels = torch.randn(8, WIDTH), torch.arange(8) % CLASSES
    model[0](x, shared(one_hot(labels, CLASSES)))
    loss = F.cross_entropy(model.predict(x), labels)
    assert model[0].loss()[0] == pytest.approx(loss.item(), rel=1e-5)


def test_an_al_layer_takes_codes_of_any_level():
    layer = AL(ENC(nn.Linear(2, 2), nn.Linear(2, 3)), AE(nn.Linear(4, 3), nn.Linear(3, 4)))
    _, t = ALModel([layer])[0](torch.zeros(2, 2), Codes(torch.eye(4), torch.tensor([3, 3])))
    assert torch.equal(t.gathered()[0], t.rows[3])


def test_fixed_codes_are_local_classifiers():
    """Plain Adam on each block's own cosine cross-entropy ends in the same bits: no label side."""
    model = to_local(tanh_blocks(3)[:3], CLASSES, torch.zeros(2, WIDTH), rule="fixed_codes")
    twins = [copy.deepcopy(layer.enc) for layer in model]
    table = model[0].ae.g.table.clone()
    optimizers = [torch.optim.Adam(t.parameters(), lr=3e-3, fused=True) for t in twins]
    batches = made_batches(15, size=8)
    train_epoch(model, batches, "local")
    for x, y in batches:
        for twin, optimizer in zip(twins, optimizers, strict=True):
            x, m = twin(x.detach())
            scores = 10.0 * (F.normalize(m, dim=1) @ F.normalize(table, dim=1).T)
            optimizer.zero_grad()
            F.cross_entropy(scores, y.argmax(1), label_smoothing=0.1).backward()
            optimizer.step()
    assert [len([*layer.ae.parameters()]) for layer in model] == [0, 0, 0]
    for layer, twin in zip(model, twins, strict=True):
        assert not differences(dict(layer.enc.named_parameters()), dict(twin.named_parameters()))
