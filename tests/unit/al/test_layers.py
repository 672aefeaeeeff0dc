"""The AL layer against plain torch, its detach rules, its contract and its errors."""

from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit import AE, AL, ENC, ALModel, one_hot
from alkit.al.codes import Codes
from alkit.al.losses import Contrast
from tests.helpers import CLASSES, CODE, WIDTH, dense_layer, dense_model, differences, made_batches


def _plain_layer():
    return dense_layer(0, dropout=0.0)


def _snapshot(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


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


def test_outputs_are_detached_and_inputs_get_no_gradient():
    layer, (x, y) = _plain_layer(), made_batches(1)[0]
    x, y = x.requires_grad_(), y.requires_grad_()
    s, t = layer(x, y)
    layer.backward()
    assert not s.requires_grad
    assert not t.requires_grad
    assert x.grad is None
    assert y.grad is None


@pytest.mark.parametrize(("half", "other"), [(0, "ae"), (1, "enc")])
def test_each_loss_reaches_its_own_half_only(half, other):
    layer, (x, y) = _plain_layer(), made_batches(1)[0]
    layer(x, y)
    layer.losses[half].backward()
    assert all(p.grad is None for p in getattr(layer, other).parameters())
    own = layer.enc if other == "ae" else layer.ae
    assert all(p.grad is not None for p in own.parameters())


def _learned_targets(associated, *, coupled):
    """Return a layer whose target learns from the associated loss, if it is coupled."""
    layer = _plain_layer()
    layer.enc.loss_fn = associated
    return AL(layer.enc, layer.ae, lr=1e-2, coupled=coupled)


@pytest.mark.parametrize("associated", [F.mse_loss, Contrast(scale=4.0)])
def test_a_coupled_target_learns_from_both_losses(associated):
    layer, (x, y) = _learned_targets(associated, coupled=True), made_batches(1, size=24)[0]
    _, t = layer(x, y)
    layer.backward()
    g, h = layer.ae.g, layer.ae.h
    code, m = g(y), layer.enc.b(layer.enc.f(x))
    if associated is F.mse_loss:
        target = code
    else:
        target = Codes(g(torch.eye(CLASSES)), y.argmax(1))
    both = layer.enc.loss(m, target) + layer.ae.loss(h(code), y)
    expected = torch.autograd.grad(both, g.parameters())
    for parameter, gradient in zip(g.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert not t.requires_grad


def test_a_target_is_detached_unless_coupled():
    x, y = made_batches(1)[0]
    gradients = []
    for coupled in (False, True):
        torch.manual_seed(0)
        layer = _learned_targets(F.mse_loss, coupled=coupled)
        layer(x, y)
        layer.losses[0].backward()
        gradients.append([p.grad is not None for p in layer.ae.g.parameters()])
    assert gradients == [[False, False], [True, True]]


def test_a_step_of_one_layer_changes_no_other():
    model, (x, y) = dense_model(3), made_batches(1)[0]
    model(x, y)
    before = [_snapshot(layer) for layer in model]
    model[1].backward_and_update()
    changed = [bool(differences(a, _snapshot(b))) for a, b in zip(before, model, strict=True)]
    assert changed == [False, True, False]


def test_gradients_reach_no_layer_below():
    """The whole model's losses, back-propagated at once, give what each layer's own backward
    gives."""
    model, (x, y) = dense_model(3, dropout=0.0), made_batches(1)[0]
    model(x, y)
    sum(sum(layer.losses) for layer in model).backward()
    at_once = [p.grad.clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    model(x, y)
    for layer in model:
        layer.backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(at_once, model.parameters(), strict=True))


def test_undetached_target_would_show():
    """Negative control: with the target's detach broken, g gets gradient of the associated loss."""

    class Leaky(AL):
        def forward(self, x, y):
            t, r = self.ae(y)
            s, m = self.enc(x)
            self.losses = self.enc.loss(m, t), self.ae.loss(r, y)
            return s.detach(), t.detach()

    good = _plain_layer()
    leaky = Leaky(good.enc, good.ae)
    x, y = made_batches(1)[0]
    leaky(x, y)
    leaky.losses[0].backward()
    assert any(p.grad is not None for p in leaky.ae.parameters())


def test_backward_drops_old_gradients_and_update_needs_a_backward():
    layer, (x, y) = dense_layer(0, dropout=0.0, batch_norm=False), made_batches(1)[0]
    layer(x, y)
    layer.backward()
    first = [p.grad.clone() for p in layer.parameters()]
    layer(x, y)
    layer.backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(first, layer.parameters(), strict=True))
    layer.update()
    with pytest.raises(RuntimeError, match="update.. needs a backward"):
        layer.update()
    with pytest.raises(RuntimeError, match="backward.. needs a forward"):
        layer.backward()


def test_in_place_first_operation_is_refused():
    f = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))
    layer = dense_layer(0)
    layer.enc.f = f
    x, y = made_batches(1)[0]
    with pytest.raises(RuntimeError, match="in place"):
        layer(x, y)


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
    """The contract in the docstrings: a bridge with an auxiliary loss, fixed codes, a logged
    forward."""

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
    model = ALModel([layer])
    losses = []
    for x, y in made_batches(1) * 60:
        model(x, y)
        layer.backward_and_update()
        losses.append(layer.loss()[0])
    assert layer.calls == 60
    assert losses[-1] < losses[0] / 2
    assert layer.optimizers["ae"] is None
    assert layer.loss()[1] < 1e-10  # orthonormal codes decode exactly
    assert layer.parameter_counts()["g"] == 0


def test_tuples_pass_without_special_cases():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, inputs):
            x, (mask, state) = inputs
            return self.linear(x), (mask, {"state": state["state"] + 1})

    layers = [dense_layer(i) for i in range(2)]
    for layer in layers:
        layer.enc.f = Masked()
        layer.enc.b = nn.Sequential(_First(), nn.Linear(WIDTH, CODE))
    model, (x, y) = ALModel(layers), made_batches(1)[0]
    s, _ = model((x, (torch.ones(4), {"state": torch.zeros(4)})), y)
    assert torch.equal(s[1][1]["state"], torch.full((4,), 2.0))
    assert not s[0].requires_grad


class _First(nn.Module):
    def forward(self, s):
        return s[0]


def test_inference_by_letters_equals_predict_at_every_depth():
    model, (x, _) = dense_model(3), made_batches(1)[0]
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


def test_predict_restores_every_mode():
    model, (x, _) = dense_model(2), made_batches(1)[0]
    model[0].enc.f.eval()
    modes = [part.training for part in model.modules()]
    model.predict(x)
    assert [part.training for part in model.modules()] == modes


@pytest.mark.parametrize("depth", [0, 4])
def test_depth_out_of_range(depth):
    with pytest.raises(ValueError, match="exits 1 to 3"):
        dense_model(3).predict(made_batches(1)[0][0], depth)


@pytest.mark.parametrize("lr", [1, 0.5, np.float32(0.25), np.int64(1), Fraction(1, 8)])
def test_any_real_number_is_a_learning_rate(lr):
    plain = _plain_layer()
    layer = AL(plain.enc, plain.ae, lr=lr)
    assert layer.optimizers["enc"].param_groups[0]["lr"] == float(lr)


@pytest.mark.parametrize("lr", ["1e-3", None, True, torch.tensor(0.1), [0.1, 0.2]])
def test_lr_of_a_wrong_type(lr):
    plain = _plain_layer()
    with pytest.raises(TypeError, match="lr must be a real number"):
        AL(plain.enc, plain.ae, lr=lr)


@pytest.mark.parametrize("lr", [-1.0, float("nan"), {"enc": 1e-3}, {"enc": 1, "ae": 1, "x": 1}])
def test_lr_of_a_wrong_value(lr):
    plain = _plain_layer()
    with pytest.raises(ValueError, match="lr"):
        AL(plain.enc, plain.ae, lr=lr)


def test_pair_of_rates_and_set_lr():
    plain = _plain_layer()
    layer = AL(plain.enc, plain.ae, lr={"enc": 1e-3, "ae": 2e-3})
    rates = {group: o.param_groups[0]["lr"] for group, o in layer.optimizers.items()}
    assert rates == {"enc": 1e-3, "ae": 2e-3}
    layer.set_lr("ae", 5e-4)
    layer.set_lr(["enc"], np.float64(1e-4))
    assert layer.optimizers["ae"].param_groups[0]["lr"] == 5e-4
    assert layer.lr == {"enc": 1e-4, "ae": 5e-4}
    with pytest.raises(ValueError, match="unknown groups"):
        layer.set_lr("encoder", 1e-3)


def test_classes_instead_of_instances():
    with pytest.raises(TypeError, match="instance of ENC"):
        AL(ENC, AE)


def test_other_optimisers():
    plain = _plain_layer()
    layer = AL(plain.enc, plain.ae, 0.1, optimizer=torch.optim.SGD)
    assert isinstance(layer.optimizers["enc"], torch.optim.SGD)


def test_parameter_counts():
    model = dense_model(3)
    counts = model.parameter_counts()
    f = WIDTH * WIDTH + WIDTH + 2 * WIDTH
    b = WIDTH * CODE + CODE
    h = [CODE * CLASSES + CLASSES, CODE * CODE + CODE, CODE * CODE + CODE]
    assert counts["effective"] == 3 * f + sum(h) + b
    assert counts["total"] == sum(p.numel() for p in model.parameters())


def test_shared_parameters_and_empty_models_are_refused():
    first, second = dense_layer(1), dense_layer(1)
    second.enc.f = first.enc.f
    with pytest.raises(ValueError, match="layers 0 and 1 share"):
        ALModel([first, second])
    with pytest.raises(ValueError, match="at least one"):
        ALModel([])
    with pytest.raises(TypeError, match="layer 0 must be an AL layer"):
        ALModel([nn.Linear(1, 1)])


def test_batches_that_do_not_fit():
    model, (x, y) = dense_model(2), made_batches(1)[0]
    with pytest.raises(ValueError, match=r"f does not take an input of shape \(4, 7\)"):
        model(torch.randn(4, 7), y)
    with pytest.raises(ValueError, match=r"g does not take an input of shape \(4, 9\)"):
        model(x, torch.zeros(4, 9))
    with pytest.raises(ValueError, match="x holds 4 samples and y 3"):
        model(x, y[:3])
    with pytest.raises(ValueError, match="y must be one-hot"):
        model(x, y.argmax(1).float())
    model[0].enc.b = nn.Linear(WIDTH, CODE + 1)
    with pytest.raises(ValueError, match="b must pool"):
        model(x, y)


def test_labels_out_of_range():
    with pytest.raises(ValueError, match="label 3 at position 1 is out of range.*0 to 2"):
        one_hot(torch.tensor([0, 3, 9]), 3)
    with pytest.raises(ValueError, match="integers"):
        one_hot(torch.tensor([0.0, 1.0]), 3)


@pytest.mark.parametrize("path", ["g", "", "F"])
def test_unknown_inference_letter(path):
    with pytest.raises(ValueError, match="give 'f', 'b' or 'h'"):
        _plain_layer().inference(torch.zeros(1, WIDTH), path)


def test_the_seed_s_threaded_loop_runs_unchanged():
    import threading

    model, batches = dense_model(3, dropout=0.0), made_batches(5)
    twin = dense_model(3, dropout=0.0)
    for x, y in batches:
        thread = []
        for layer in model:
            x, y = layer(x, y)
            thread.append(threading.Thread(target=layer.backward_and_update))
            thread[-1].start()
        for one in thread:
            one.join()
    for x, y in batches:
        for layer in twin:
            s_t = layer(x, y)
            layer.backward_and_update()
            x, y = s_t
    assert not differences(_snapshot(model), _snapshot(twin))
