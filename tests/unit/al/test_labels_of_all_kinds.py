"""Labels as class numbers, one-hot, soft or numbers to predict; blocks of any dtype."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alkit
from alkit import one_hot, to_al, to_bp, to_local, train_epoch
from alkit.al.codes import Codes, Contrast, shared
from alkit.al.recipes import find_recipe
from tests.helpers import CLASSES, WIDTH, dense_model, differences, made_batches, state_of
from tests.make import tanh_blocks

X = torch.zeros(2, WIDTH)


def _blocks(dtype=torch.float32):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()).to(dtype) for _ in range(2)]


def _al(recipe="detached"):
    return to_al(_blocks(), CLASSES, X, recipe=recipe)


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


def test_soft_labels_of_one_class_each_are_hard_ones():
    """The mixture of codes that the layers hand on has the gradients of one-hot rows."""
    x, y = made_batches(1, size=8)[0]
    grads = []
    for index in (y.argmax(1), y):
        model = dense_model(2, dropout=0.0)
        s, t = x, Codes(torch.eye(CLASSES), index)
        for layer in model:
            layer.enc.loss_fn = Contrast(5.0)
            s, t = layer(s, t)
            layer.backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-6)


def test_regression_by_squared_errors_learns():
    recipe = replace(find_recipe("regression", "images"), code_dim=16, lr=1e-2)
    sizes = ((WIDTH, 32), (32, 32))
    model = to_al([nn.Sequential(nn.Linear(*s), nn.ReLU()) for s in sizes], 1, X, recipe=recipe)
    x = torch.randn(256, WIDTH)
    y = torch.tanh(x[:, :1] - x[:, 1:2])
    for _ in range(40):
        train_epoch(model, list(zip(x.split(32), y.split(32), strict=True)), "al")
    assert F.mse_loss(model.predict(x), y) / y.var() < 0.2


@pytest.mark.parametrize(
    ("make", "mode"),
    [
        *((lambda r=r: _al(recipe=r), "al_pipeline") for r in ("coupled", "mse", "original")),
        (_fixed, "local_pipeline"),
        (_al, "al"),
        (lambda: dense_model(2), "al"),
        (lambda: to_bp(tanh_blocks()[:2], CLASSES, X), "bp"),
    ],
)
def test_class_numbers_are_one_hot_rows(make, mode):
    states, losses = [], []
    for numbers in (True, False):
        model = make()
        batches = [(x, y.argmax(1) if numbers else y) for x, y in made_batches(4)]
        losses.append(train_epoch(model, batches, mode, 2).losses)
        states.append(state_of(model))
    assert not differences(*states)
    torch.testing.assert_close(*losses, **({} if mode == "bp" else {"rtol": 0, "atol": 0}))


def test_class_numbers_by_hand():
    by_number, by_row = dense_model(2, dropout=0.0), dense_model(2, dropout=0.0)
    x, y = made_batches(1)[0]
    assert all(map(torch.equal, by_number[0](x, y.argmax(1)), by_row[0](x, y)))


@pytest.mark.parametrize("recipe", ["detached", "mse"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_bridges_and_label_sides_have_the_blocks_dtype(recipe, dtype):
    model = to_al(_blocks(dtype), CLASSES, X.to(dtype), recipe=recipe)
    assert {t.dtype for t in model.state_dict().values() if t.is_floating_point()} == {dtype}
    batches = [(x.to(dtype), y.argmax(1)) for x, y in made_batches(3)]
    record = train_epoch(model, batches, "al_pipeline", 2)
    assert record.losses.dtype == torch.promote_types(dtype, torch.float32)
    twin = to_bp(_blocks(dtype), CLASSES, X.to(dtype))
    assert torch.isfinite(train_epoch(twin, batches, "bp").losses).all()


def _sequential():
    parts = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3)]
    return nn.Sequential(*parts, nn.ReLU(), nn.Flatten(), nn.Linear(4, 5))


def test_a_sequential_becomes_layers_beside_its_head():
    network, x = _sequential(), torch.zeros(2, 1, 8, 8)
    model = to_al(network, 5, x)
    kinds = [[type(part).__name__ for part in layer.enc.f.modules()][1:] for layer in model]
    assert kinds == [[], ["BatchNorm2d", "ReLU", "MaxPool2d"], ["Conv2d", "ReLU", "Flatten"]]
    assert model[0].enc.f is network[0]
    assert model.head[0] is network[-1]
    twin = to_bp(other := _sequential(), 5, x)
    assert list(twin) == list(other)  # nothing is added, nothing is left out
    assert len(to_al(_sequential(), 7, x)) == 4  # 5 is not 7: no head


@pytest.mark.parametrize(
    ("last", "layers"),
    [
        ([nn.Linear(WIDTH, CLASSES)], 2),
        ([nn.Flatten(), nn.Linear(WIDTH, CLASSES), nn.LogSoftmax(1)], 2),
        ([nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)], 2),
        ([nn.Linear(WIDTH, CLASSES + 1)], 3),  # another width: no scores of these classes
    ],
)
def test_what_counts_as_a_head(last, layers):
    model = to_al([*_blocks(), nn.Sequential(*last)], CLASSES, X)
    assert len(model) == layers
    assert (model.head is None) == (layers == 3)


def test_modules_resolve_after_import():
    for name in ("datasets", "delayed", "dtp", "elastic", "split"):
        assert getattr(alkit, name).__name__.startswith("alkit.")
        assert name in dir(alkit)
