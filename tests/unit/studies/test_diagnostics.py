"""What blocks show, against definitions written out."""

import math

import pytest
import torch
from torch import nn

from studies.ladder import diagnostics
from tests.unit.studies.test_ladder import batch, made


def rows(n=60, d=5, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def test_cka_is_its_definition_and_does_not_see_turns_shifts_and_scale():
    a, b = rows(d=5), rows(d=3, seed=1)
    middle = torch.eye(60, dtype=torch.float64) - 1 / 60
    one, other = (middle @ (m.double() @ m.double().T) @ middle for m in (a, b))
    wanted = (one * other).sum() / (one.norm() * other.norm())
    assert diagnostics.cka(a, b) == pytest.approx(float(wanted))
    a = rows()
    turn = torch.linalg.qr(rows(5, 5, seed=2)).Q
    assert diagnostics.cka(a, 3 * a @ turn + 7) == pytest.approx(1)
    assert diagnostics.cka(a, rows(seed=3)) < 0.3


def test_class_distance_ratio_by_hand():
    classes = torch.tensor([0, 0, 2, 2, 7])
    given = torch.tensor([[0.0, 1], [0, -1], [4, 2], [4, -2], [0, 3]])
    within = (1 + 1 + 2 + 2 + 0) / 5
    between = (4 + 3 + 5) / 3
    assert diagnostics.class_distance_ratio(given, classes) == pytest.approx(within / between)
    assert diagnostics.between_classes(given, classes).tolist() == [4, 3, 5]


def test_effective_rank_cosine_and_order_of_rows():
    assert diagnostics.effective_rank(torch.eye(6)) == pytest.approx(6)
    assert diagnostics.effective_rank(torch.ones(6, 4)) == pytest.approx(1)
    assert diagnostics.largest_cosine(torch.eye(6)) == 0
    assert diagnostics.largest_cosine(torch.tensor([[1.0, 0], [0, 2], [3, 3]])) == pytest.approx(
        0.5**0.5
    )
    a = rows(10, 1)[:, 0]
    assert diagnostics.same_order(a, 2 * a + 1) == pytest.approx(1)
    assert diagnostics.same_order(a, -a) == pytest.approx(-1)
    assert math.isnan(diagnostics.same_order(torch.ones(10), a))


def test_a_probe_finds_what_is_linear_by_a_penalty_chosen_on_validation():
    x, y = rows(300, 4), torch.arange(300) % 3
    shown = x + 6 * nn.functional.one_hot(y, 4)
    cut = (slice(0, 150), slice(150, 200), slice(200, 300))
    assert diagnostics.probe([(shown[part], y[part]) for part in cut]) > 95
    assert diagnostics.probe([(x[part], y[part]) for part in cut]) < 60
    # A strong ridge never names the class in the middle, which lies between the two others.
    x = torch.linspace(-1, 1, 300)[torch.randperm(300, generator=torch.Generator().manual_seed(0))]
    y = (x > -1 / 3).long() + (x > 1 / 3)
    cut = (slice(0, 150), slice(150, 200), slice(200, 300))
    assert diagnostics.probe([(x[part, None], y[part]) for part in cut]) > 90


@pytest.mark.parametrize("variant", ["linear", "detached", "coupled"])
def test_the_last_block_s_gradient_is_backprop_s(variant):
    model = made(variant)
    before = [p.clone() for p in model.parameters()]
    x, y, _ = batch()
    found = diagnostics.alignment(model, x, y)
    assert len(found) == 3
    assert found[-1] == pytest.approx(1, abs=1e-6)
    assert max(found[:-1]) < 1 - 1e-4
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_alignment_of_a_block_by_plain_torch():
    model = made("linear")
    x, y, index = batch()
    parameters = list(model[0].enc.f.parameters())
    first, *others = (layer.enc for layer in model)
    s = first.f(x)
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    local = torch.autograd.grad(loss(first.b(s), index), parameters, retain_graph=True)
    for enc in others:
        s = enc.f(s)
    true = torch.autograd.grad(loss(model[-1].enc.b(s), index), parameters)
    local, true = (torch.cat([g.flatten() for g in each]) for each in (local, true))
    wanted = torch.nn.functional.cosine_similarity(local, true, dim=0).item()
    assert diagnostics.alignment(model, x, y)[0] == pytest.approx(wanted, abs=1e-5)
