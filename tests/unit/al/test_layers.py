"""The AL layer against plain torch, its detach rules, its contract and its errors."""

import threading
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit import AE, AL, ENC, ALModel, one_hot
from alkit.al.codes import Codes, Contrast
from tests.helpers import (
    CLASSES,
    CODE,
    WIDTH,
    dense_layer,
    dense_model,
    differences,
    made_batches,
    state_of,
)


def _plain_layer(**options):
    return dense_layer(0, dropout=0.0, **options)


def _snapshot(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def _gradients(module):
    return [p.grad for p in module.parameters()]


def test_a_layer_by_hand_in_plain_torch():
    """Eq. by Eq. of the method with torch.optim.Adam, ten steps: the same bits."""
    layer, twin = _plain_layer(), _plain_layer()
    twin.load_state_dict(layer.state_dict())
    f, b, g, h = twin.enc.f, twin.enc.b, twin.ae.g, twin.ae.h
    opt_enc = torch.optim.Adam([*f.parameters(), *b.parameters()], lr=1e-2, fused=True)
    opt_ae = torch.optim.Adam([*g.parameters(), *h.parameters()], lr=1e-2, fused=True)
    for x, y in made_batches(10):
        s, t = layer(x, y)
        layer.backward_and_update()
        own_t = g(y)
        ae_loss = F.cross_entropy(h(own_t), y)
        own_s = f(x)
        associated = F.mse_loss(b(own_s), own_t.detach())
        opt_enc.zero_grad()
        opt_ae.zero_grad()
        associated.backward()
        ae_loss.backward()
        opt_enc.step()
        opt_ae.step()
        assert torch.equal(s, own_s)
        assert torch.equal(t, own_t)
        assert layer.loss() == (associated.item(), ae_loss.item())
    assert not differences(_snapshot(layer), _snapshot(twin))


@pytest.mark.parametrize(("half", "other"), [(0, "ae"), (1, "enc")])
def test_each_loss_reaches_its_own_half_only_and_no_input(half, other):
    layer, (x, y) = _plain_layer(), made_batches(1)[0]
    s, t = layer(x.requires_grad_(), y.requires_grad_())
    layer.losses[half].backward()
    assert not any(g is not None for g in _gradients(getattr(layer, other)))
    assert all(g is not None for g in _gradients(layer.enc if other == "ae" else layer.ae))
    assert not s.requires_grad
    assert not t.requires_grad
    assert x.grad is y.grad is None


@pytest.mark.parametrize("associated", [F.mse_loss, Contrast(scale=4.0)])
def test_a_coupled_target_learns_from_both_losses(associated):
    plain, (x, y) = _plain_layer(), made_batches(1, size=24)[0]
    plain.enc.loss_fn = associated
    layer = AL(plain.enc, plain.ae, lr=1e-2, coupled=True)
    _, t = layer(x, y)
    layer.backward()
    g, h = layer.ae.g, layer.ae.h
    code, m = g(y), layer.enc.b(layer.enc.f(x))
    distinct = Codes(g(torch.eye(CLASSES)), y.argmax(1))
    target = code if associated is F.mse_loss else distinct
    both = layer.enc.loss(m, target) + layer.ae.loss(h(code), y)
    expected = torch.autograd.grad(both, g.parameters())
    torch.testing.assert_close(_gradients(g), list(expected))
    assert not t.requires_grad


def test_a_step_of_one_layer_changes_no_other():
    model, (x, y) = dense_model(3), made_batches(1)[0]
    model(x, y)
    before = [_snapshot(layer) for layer in model]
    model[1].backward_and_update()
    changed = [bool(differences(a, _snapshot(b))) for a, b in zip(before, model, strict=True)]
    assert changed == [False, True, False]


def test_gradients_reach_no_layer_below():
    """All losses back-propagated at once give what each layer's own backward gives."""
    model, (x, y) = dense_model(3, dropout=0.0), made_batches(1)[0]
    model(x, y)
    sum(sum(layer.losses) for layer in model).backward()
    at_once = [g.clone() for g in _gradients(model)]
    model.zero_grad(set_to_none=True)
    model(x, y)
    for layer in model:
        layer.backward()
    assert all(map(torch.equal, at_once, _gradients(model)))


def test_backward_drops_old_gradients_and_update_needs_a_backward():
    layer, (x, y) = _plain_layer(batch_norm=False), made_batches(1)[0]
    found = []
    for _ in range(2):
        layer(x, y)
        layer.backward()
        found.append([g.clone() for g in _gradients(layer)])
    assert all(map(torch.equal, *found))
    layer.update()
    with pytest.raises(RuntimeError, match="update.. needs a backward"):
        layer.update()
    with pytest.raises(RuntimeError, match="backward.. needs a forward"):
        layer.backward()


def test_replacing_a_function_moves_the_optimiser_along():
    layer, (x, y) = _plain_layer(), made_batches(1)[0]
    layer(x, y)
    layer.backward_and_update()
    kept = layer.optimizers["ae"]
    layer.enc.f = nn.Linear(WIDTH, WIDTH)
    before = layer.enc.f.weight.clone()
    layer(x, y)
    layer.backward_and_update()
    assert not torch.equal(before, layer.enc.f.weight)
    assert layer.optimizers["ae"] is kept


def test_overriding_the_halves_and_the_layer():
    """The docstrings' contract: a bridge with an auxiliary loss, fixed codes, a logged forward."""

    class Penalised(ENC):
        def forward(self, x):
            s, m = super().forward(x)
            self.penalty = 0.1 * m.pow(2).mean()
            return s, m

        def loss(self, m, target):
            return super().loss(m, target) + self.penalty

    class FixedCodes(AE):
        def __init__(self):
            codes = torch.linalg.qr(torch.randn(CODE, CODE))[0][:CLASSES]
            super().__init__(lambda y: y @ codes, lambda t: t @ codes.T)

    class Counted(AL):
        calls = 0

        def forward(self, x, y):
            self.calls += 1
            return super().forward(x, y)

    plain = _plain_layer()
    layer = Counted(Penalised(plain.enc.f, plain.enc.b), FixedCodes(), lr=1e-2)
    model, losses = ALModel([layer]), []
    for x, y in made_batches(1) * 60:
        model(x, y)
        layer.backward_and_update()
        losses.append(layer.loss()[0])
    assert layer.calls == 60
    assert losses[-1] < losses[0] / 2
    assert layer.optimizers["ae"] is None
    assert layer.loss()[1] < 1e-10  # orthonormal codes decode exactly
    assert layer.parameter_counts()["g"] == 0


class _Masked(nn.Linear):
    def forward(self, inputs):
        x, (mask, state) = inputs
        return super().forward(x), (mask, {"state": state["state"] + 1})


class _First(nn.Module):
    def forward(self, s):
        return s[0]


def test_tuples_pass_without_special_cases():
    layers = [dense_layer(i) for i in range(2)]
    for layer in layers:
        layer.enc.f = _Masked(WIDTH, WIDTH)
        layer.enc.b = nn.Sequential(_First(), nn.Linear(WIDTH, CODE))
    model, (x, y) = ALModel(layers), made_batches(1)[0]
    s, _ = model((x, (torch.ones(4), {"state": torch.zeros(4)})), y)
    assert torch.equal(s[1][1]["state"], torch.full((4,), 2.0))
    assert not s[0].requires_grad


def test_inference_by_letters_equals_predict_at_every_depth_and_keeps_all_modes():
    model, (x, _) = dense_model(3), made_batches(1)[0]
    model[0].enc.f.eval()
    modes = [part.training for part in model.modules()]
    for depth in (1, 2, 3):
        out = x
        for layer in list(model)[:depth]:
            out = layer.inference(out, "f")
        out = model[depth - 1].inference(out, "b")
        for layer in reversed(list(model)[:depth]):
            out = layer.inference(out, "h")
        assert torch.equal(out, model.predict(x, depth))
    assert torch.equal(out, model.predict(x))
    assert out.shape == (4, CLASSES)
    assert [part.training for part in model.modules()] == modes


def _layer(lr=1e-3, **options):
    plain = _plain_layer()
    return AL(plain.enc, plain.ae, lr, **options)


@pytest.mark.parametrize("lr", [1, 0.5, np.float32(0.25), np.int64(1), Fraction(1, 8)])
def test_any_real_number_is_a_learning_rate_of_any_optimiser(lr):
    layer = _layer(lr, optimizer=torch.optim.SGD)
    assert isinstance(layer.optimizers["enc"], torch.optim.SGD)
    assert _rates(layer) == {"enc": float(lr), "ae": float(lr)}
    layer = _layer({"enc": 1e-3, "ae": 2e-3})
    assert _rates(layer) == {"enc": 1e-3, "ae": 2e-3}
    layer.set_lr("ae", 5e-4)
    layer.set_lr(["enc"], lr)
    assert _rates(layer) == layer.lr == {"enc": float(lr), "ae": 5e-4}


def _rates(layer):
    return {group: o.param_groups[0]["lr"] for group, o in layer.optimizers.items()}


def test_parameter_counts():
    model = dense_model(3)
    counts = model.parameter_counts()
    f = WIDTH * WIDTH + WIDTH + 2 * WIDTH
    b = WIDTH * CODE + CODE
    h = [CODE * CLASSES + CLASSES, CODE * CODE + CODE, CODE * CODE + CODE]
    assert counts["effective"] == 3 * f + sum(h) + b
    assert counts["total"] == sum(p.numel() for p in model.parameters())


def _shared():
    first, second = dense_layer(1), dense_layer(1)
    second.enc.f = first.enc.f
    ALModel([first, second])


def _wide_bridge():
    model = dense_model(2)
    model[0].enc.b = nn.Linear(WIDTH, CODE + 1)
    model(X, Y)


def _in_place():
    layer = dense_layer(0)
    layer.enc.f = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))
    layer(X, Y)


X, Y = made_batches(1)[0]
REFUSED = [
    *((lambda lr=lr: _layer(lr), "lr is .* it must be a number")
      for lr in ("1e-3", True, torch.tensor(0.1), [0.1, 0.2])),
    *((lambda lr=lr: _layer(lr), "lr")
      for lr in (-1.0, float("nan"), {"enc": 1e-3, "ae": -1.0})),
    (lambda: dense_model(3).predict(X, 0), "exits 1 to 3"),
    (lambda: dense_model(3).predict(X, 4), "exits 1 to 3"),
    (_shared, "layers 0 and 1 share"),
    (lambda: dense_model(2)(X, Y[:3]), r"the bridge gives \(4, 5\) and the label code is \(3, 5\)"),
    (lambda: dense_model(2)(X[:3], torch.rand(3)), "the bridge gives"),  # 3 is C, too
    (_wide_bridge, "b must pool"),
    (_in_place, "in place"),
    (lambda: one_hot(torch.tensor([0, 3, 9]), 3), "Class values must be smaller than num_c"),
    (lambda: one_hot(torch.tensor([0.0, 1.0]), 3), "index tensor"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_is_refused(call, message):
    with pytest.raises((RuntimeError, TypeError, ValueError), match=message):
        call()


def test_the_seed_s_threaded_loop_runs_unchanged():
    model, twin = dense_model(3, dropout=0.0), dense_model(3, dropout=0.0)
    for batch in made_batches(5):
        threads, (x, y) = [], batch
        for layer in model:
            x, y = layer(x, y)
            threads.append(threading.Thread(target=layer.backward_and_update))
            threads[-1].start()
        for one in threads:
            one.join()
        x, y = batch
        for layer in twin:
            s_t = layer(x, y)
            layer.backward_and_update()
            x, y = s_t
    assert not differences(state_of(model), state_of(twin))
