"""What blocks show, against definitions written out; and stacks of equal blocks."""

import math

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch
from torch import nn

from alkit.al.model import ALModel
from alkit.data import datasets
from alkit.engine.loop import Plan
from alkit.records import results
from alkit.records.packed import pack
from studies.ladder import arms as ladder_arms
from studies.ladder import depth as depth_study
from studies.ladder import depth_figures, diagnostics
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


def test_alignment_leaves_modes_and_statistics_as_they_are():
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh()) for _ in range(2)]
    model = ladder_arms.build("linear", blocks, 3, torch.zeros(2, 6), lr=0.1).eval()
    x, y, _ = batch()
    diagnostics.alignment(model, x, y)
    assert not model.training
    assert all(int(block[1].num_batches_tracked) == 0 for block in blocks)


@pytest.mark.parametrize("arm", ["linear", "detached", "coupled"])
def test_the_last_block_s_gradient_is_backprop_s(arm):
    model = made(arm)
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


def test_bodies_are_the_blocks_that_were_given_and_halve_a_picture_to_8_pixels():
    for arm in ("bp", "deep_supervision", "linear", "detached"):
        blocks = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)]
        model = ladder_arms.build(arm, blocks, 3, torch.zeros(2, 6), lr=0.1)
        found = diagnostics.bodies(model)
        assert [body[0].weight.data_ptr() for body in found] == [
            block[0].weight.data_ptr() for block in blocks
        ]
    x = torch.zeros(2, 3, 32, 32)
    for block in depth_study.blocks(4, 6, channels=3, size=32):
        x = block(x)
    assert x.shape == (2, 6, 8, 8)
    assert len(depth_study.blocks(2, 6, channels=1, size=8)) == 2
    with pytest.raises(ValueError, match="1 blocks can't bring 32 pixels to 8: give 2"):
        depth_study.blocks(1, 6, channels=3, size=32)


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits", seed=0).subset(train=96, validation=60, test=60)


def test_a_run_and_what_its_blocks_show(digits):
    plan = Plan(epochs=1, batch_size=32)
    run = lambda arm: depth_study.run(arm, digits, plan, depth=3, width=4, lr=3e-3)  # noqa: E731
    bp, detached = run("bp").fit.model, run("detached").fit.model
    reference = diagnostics.features(diagnostics.bodies(bp), digits.test)
    assert [tuple(each.shape) for each in reference] == [(60, 16)] * 3
    found = depth_study.diagnosed(detached, digits, reference)
    lengths = {metric: len(values) for metric, values in found.items()}
    assert lengths.pop("cka_next") == 2
    assert set(lengths.values()) == {3}
    assert set(lengths) == {
        "probe", "class_distance", "cka_bp", "alignment", "code_rank", "code_cosine", "semantics",
        "decoded",
    }  # fmt: skip
    x, y = digits.test.x, digits.test.y
    through, nearest = ALModel.predict(detached, x, 2), detached.predict(x, 2)
    gain = (through.argmax(1) == y).float().mean() - (nearest.argmax(1) == y).float().mean()
    assert found["decoded"][1] == pytest.approx(100 * gain.item(), abs=1e-4)
    own = depth_study.diagnosed(bp, digits, reference)
    assert own["cka_bp"] == pytest.approx([1, 1, 1])
    assert "alignment" not in own
    made_run = results.Run("08_depth")
    for seed in (0, 1):
        where = {"data": "digits", "depth": 3, "seed": seed}
        depth_study.record(made_run, found, arm="detached", **where)
    recorded = pd.DataFrame(made_run.rows)
    table = depth_study.over_blocks(recorded, "probe", data="digits", depth=3)
    assert table.n.tolist() == [2, 2, 2]
    assert table["mean"].tolist() == pytest.approx(found["probe"], abs=1e-4)


def test_a_title_follows_the_variant_that_ends_lowest():
    made_run = results.Run("08_depth")
    for arm, values in {
        "linear": [90.0, 80.0],
        "bp again": [95.0, 70.0],
        "bp": [60.0, 99.0],
    }.items():
        for data, depth in (("digits", 2), ("cifar10", 2), ("cifar10", 3)):
            rows = {"probe": [*[100.0] * (depth - 2), *values]}
            depth_study.record(made_run, rows, arm=arm, data=data, depth=depth, seed=0)
    recorded = pd.DataFrame(made_run.rows)
    assert depth_study.looked_into(recorded) == {"digits": 2, "cifar10": 3}
    metrics = {"probe": "accuracy of a probe, %"}
    figure = depth_figures.draw_blocks(recorded, metrics, data="digits", depth=2)
    said = "digits, 2 blocks: backprop, another start goes from 95.00 to 70.00"
    assert " ".join(figure.get_suptitle().split()) == said
    assert depth_figures.draw_blocks(recorded, metrics, data="digits", depth=4) is None
    assert depth_figures.draw_blocks(recorded, metrics, data="pydocs", depth=2) is None
    assert depth_figures.draw_depths(recorded) is None
    plt.close("all")


def test_accuracy_over_depth_has_one_panel_per_data_set():
    made_run = results.Run("08_depth")
    for data, depth in (("digits", 2), ("digits", 4), ("cifar10", 16)):
        for arm in ("bp", "linear"):
            labels = {"data": data, "model": depth_study.name_of(depth), "seed": 0}
            extra = {"recipe": "" if arm == "bp" else arm, "arm": ladder_arms.ARMS[arm].code}
            labels |= {"method": ladder_arms.ARMS[arm].method, "extra": extra | {"lr": 0.1}}
            made_run.record("accuracy", 90.0, n=4, **labels)
            made_run.record("correct", pack(torch.ones(4)), n=4, **labels)
    figure = depth_figures.draw_depths(pd.DataFrame(made_run.rows))
    titles = [ax.get_title(loc="left") or ax.get_title() for ax in figure.axes]
    assert titles == ["CIFAR-10", "digits"]
    assert figure.get_suptitle().startswith("With 16 blocks it is undecided")
    assert [list(ax.get_xticks()) for ax in figure.axes] == [[16], [2, 4]]
    plt.close("all")
