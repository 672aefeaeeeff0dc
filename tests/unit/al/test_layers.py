"""The AL layer against plain torch, its detach rules, its contract and its errors."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit import AL
from alkit.al.codes import Codes, Contrast
from tests.helpers import (
    CLASSES,
    WIDTH,
    dense_layer,
    dense_model,
    differences,
    made_batches,
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
    kept = layer.optimizers["ae"]
    layer.enc.f = nn.Linear(WIDTH, WIDTH)
    before = layer.enc.f.weight.clone()
    layer(x, y)
    layer.backward_and_update()
    assert not torch.equal(before, layer.enc.f.weight)
    assert layer.optimizers["ae"] is kept


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
