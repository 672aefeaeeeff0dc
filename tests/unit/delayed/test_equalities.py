"""What is equal to what, bit for bit: E1 to E21 of the methods' mathematics.

Each test names what it shows; the negative controls are at the end.
"""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit.delayed import METHODS, Pipeline, schedule_for, train_epoch
from alkit.delayed.methods import method_named
from alkit.delayed.options import Options
from alkit.delayed.stage import ModuleStage
from alkit.engine.local import run_single
from studies.recursion import recursion
from tests.unit.delayed.nets import (
    bits,
    images,
    mlp,
    momentum,
    pipeline,
    plain,
    resnet,
    same,
    trained,
    vectors,
)

WEIGHT_STALE = ("ddg", "ddg_barrier", "pipedream", "pipedream_recompute")
REPLAYS = ("fr", "fr_barrier", "fr_1f1b")
DELAYED = (*WEIGHT_STALE, *REPLAYS)


@pytest.mark.parametrize("modules", [1, 2, 3, 4, 6])
def test_e1_sequential_with_any_cut_is_sgd(modules):
    losses, tensors = plain(mlp(dropout=0.2), vectors(12))
    record = trained(mlp(dropout=0.2), modules, vectors(12), "seq")
    assert torch.equal(record.losses, losses)
    assert all(torch.equal(a, b) for a, b in zip(bits(record.pipeline), tensors, strict=True))


@pytest.mark.parametrize("modules", [2, 11])
def test_e1_on_resnet_20(modules):
    losses, tensors = plain(resnet(), images(6))
    record = trained(resnet(), modules, images(6), "seq")
    assert torch.equal(record.losses, losses)
    assert all(torch.equal(a, b) for a, b in zip(bits(record.pipeline), tensors, strict=True))


@pytest.mark.parametrize("method", [*DELAYED, "pipedream_sync", "pipedream_inplace", "ddg_inplace"])
def test_e2_with_one_module_all_are_sgd(method):
    one = trained(mlp(dropout=0.2), 1, vectors(8), method)
    assert same(one, trained(mlp(dropout=0.2), 1, vectors(8), "seq"))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("modules", [2, 3, 4, 6])
def test_e3_ddg_is_pipedream(modules, count):
    pipedream = trained(mlp(), modules, vectors(count), "pipedream")
    for other in ("ddg", "ddg_barrier"):
        assert same(pipedream, trained(mlp(), modules, vectors(count), other))


@pytest.mark.parametrize("method", sorted(METHODS))
def test_e4_the_order_of_what_is_ready_does_not_matter(method):
    count = {"micro": 4} if METHODS[method].accumulates else {}
    expected = trained(mlp(dropout=0.2), 4, vectors(8), method, **count)
    for seed in range(3):
        model = pipeline(mlp(dropout=0.2), 4)
        chooser = random.Random(seed)
        schedule = schedule_for(method, 4, **count)
        stages = [
            ModuleStage(model, k, method_named(method), Options(), count.get("micro", 1))
            for k in range(4)
        ]
        run_single(schedule, stages, vectors(8), choose=chooser.randrange)
        pairs = zip(bits(expected.pipeline), bits(model), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("workers", [None, 2, 3])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_e4_threads_end_in_the_same_bits(method, workers):
    """A thread a module, or free workers that take any module's task."""
    own = {"micro": 4} if METHODS[method].accumulates else {}
    one = trained(mlp(dropout=0.2), 4, vectors(20), method, **own)
    own["workers"] = workers
    other = trained(mlp(dropout=0.2), 4, vectors(20), method, "threads", **own)
    assert same(one, other)
    assert len(other.timeline.resources) == (workers or 4)


def test_free_workers_are_threads():
    with pytest.raises(ValueError, match="workers beside executor 'single': free workers are"):
        trained(mlp(), 2, vectors(2), "fr", "single", workers=1)


@pytest.mark.parametrize("method", [*DELAYED, "seq", "pipedream_sync"])
@pytest.mark.parametrize("modules", [2, 3, 6])
def test_e5_e6_e7_pipelines_are_their_recursions(method, modules):
    one, other = (pipeline(mlp(dropout=0.2), modules) for _ in range(2))
    losses = recursion(other, vectors(20), method)
    record = train_epoch(one, vectors(20), method)
    assert torch.equal(record.losses, losses)
    assert all(torch.equal(a, b) for a, b in zip(bits(one), bits(other), strict=True))


@pytest.mark.parametrize("method", ["pipedream", "fr"])
def test_e5_e6_on_resnet_20_with_11_modules(method):
    one, other = (pipeline(resnet(), 11) for _ in range(2))
    losses = recursion(other, images(16), method)
    record = train_epoch(one, images(16), method)
    assert torch.equal(record.losses, losses)
    assert all(torch.equal(a, b) for a, b in zip(bits(one), bits(other), strict=True))


def test_e7_vertical_sync_is_delayed_sgd():
    """One network, one optimiser, gradients at weights of K - 1 updates ago."""
    blocks, old = mlp(), [mlp()]
    stepper = momentum([p for block in blocks for p in block.parameters()])
    for number, (x, y) in enumerate(vectors(12)):
        at = old[max(0, number - 2)]
        for here, there in zip(blocks, at, strict=True):
            for live, copied in zip(here.buffers(), there.buffers(), strict=True):
                copied.copy_(live)
        value = F.cross_entropy(nn.Sequential(*at)(x), y)
        value.backward()
        for live, copied in zip(_parameters(blocks), _parameters(at), strict=True):
            live.grad, copied.grad = copied.grad, None
        stepper.step()
        for here, there in zip(blocks, at, strict=True):
            for live, copied in zip(here.buffers(), there.buffers(), strict=True):
                live.copy_(copied)
        newest = mlp()
        for live, copied in zip(_parameters(blocks), _parameters(newest), strict=True):
            copied.data.copy_(live)
        old.append(newest)
    record = trained(mlp(), 3, vectors(12), "pipedream_sync")
    expected = [t for block in blocks for t in block.state_dict().values()]
    assert all(torch.equal(a, b) for a, b in zip(bits(record.pipeline), expected, strict=True))


def _parameters(blocks):
    return [parameter for block in blocks for parameter in block.parameters()]


@pytest.mark.parametrize("method", DELAYED)
def test_e9_frozen_weights_give_backprop(method):
    def frozen(parameters):
        return torch.optim.SGD(parameters, lr=0.0)

    expected = trained(mlp(dropout=0.2), 4, vectors(10), "seq", optimizer=frozen)
    one = trained(mlp(dropout=0.2), 4, vectors(10), method, optimizer=frozen)
    assert same(one, expected)


@pytest.mark.parametrize("method", DELAYED)
def test_e9_and_e13_gradients_at_frozen_weights(method):
    """The gradients of every batch, with dropout: those of backprop, also when run again."""
    seen = _frozen_gradients(method)
    expected = _frozen_gradients("seq")
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


def test_e13_without_the_same_noise_fr_is_wrong():
    seen = _frozen_gradients("fr", replay_noise=False)
    expected = _frozen_gradients("seq")
    assert not all(torch.allclose(a, b) for a, b in zip(seen, expected, strict=True))


def _frozen_gradients(method, **settings):
    """Sum the gradients of all batches: SGD with rate 0 that keeps what it was given."""
    kept = []

    class Keep(torch.optim.SGD):
        def step(self):
            kept.append([p.grad.clone() for group in self.param_groups for p in group["params"]])

    made = pipeline(mlp(dropout=0.2), 3, lambda parameters: Keep(parameters, lr=0.0))
    train_epoch(made, vectors(6), method, **settings)
    # by module and batch: the order of steps differs between methods
    return sorted((g for each in kept for g in each), key=lambda t: (t.shape, t.flatten().tolist()))


@pytest.mark.parametrize("method", DELAYED)
def test_e10_the_first_batch_is_the_same_for_all(method):
    assert same(trained(mlp(), 4, vectors(1), method), trained(mlp(), 4, vectors(1), "seq"))


@pytest.mark.parametrize("method", [*DELAYED, "pipedream_inplace"])
def test_e11_with_all_frozen_but_the_last_module(method):
    def only_last():
        blocks = mlp()
        for block in blocks[:-2]:
            block.requires_grad_(requires_grad=False)
        return blocks

    one = trained(only_last(), 3, vectors(10), method)
    assert same(one, trained(only_last(), 3, vectors(10), "seq"))


def test_e12_over_one_linear_map_fr_is_ddg():
    def blocks():
        torch.manual_seed(0)
        return [nn.Linear(6, 6), nn.Sequential(nn.Tanh(), nn.Linear(6, 3))]

    assert same(trained(blocks(), 2, vectors(10), "fr"), trained(blocks(), 2, vectors(10), "ddg"))


def test_e14_recompute_is_the_saved_graph():
    one = trained(mlp(dropout=0.2), 4, vectors(20), "pipedream_recompute")
    assert same(one, trained(mlp(dropout=0.2), 4, vectors(20), "pipedream"))
    other = trained(mlp(dropout=0.2), 4, vectors(20), "pipedream_recompute", replay_noise=False)
    assert not same(one, other)


@pytest.mark.parametrize("count", [1, 2, 3, 12])
@pytest.mark.parametrize("modules", [2, 3, 4])
def test_e15_what_is_in_flight(modules, count):
    """Right after an update; of short runs some versions are never needed, and not held."""
    record = trained(mlp(), modules, vectors(count), "pipedream")
    delays = [modules - k for k in range(modules)]
    assert record.flights == tuple(min(count, d) for d in delays)
    most = tuple(min(count + 1, d) for d in delays)
    assert all(seen <= bound for seen, bound in zip(record.versions, most, strict=True))
    if count >= 2 * modules:
        assert record.versions == most
        synced = trained(mlp(), modules, vectors(count), "pipedream_sync")
        assert synced.versions == (modules,) * modules


def test_e17_2bw_is_delay_one_on_accumulated_gradients():
    blocks, before = mlp(), mlp()
    stepper = momentum(_parameters(blocks))
    newest = [p.detach().clone() for p in _parameters(blocks)]
    older = newest
    for x, y in vectors(8):
        for parameter, value in zip(_parameters(before), older, strict=True):
            parameter.data.copy_(value)
            parameter.grad = None
        for part in range(4):
            rows = slice(2 * part, 2 * part + 2)
            (F.cross_entropy(nn.Sequential(*before)(x[rows]), y[rows]) / 4).backward()
        for live, copied in zip(_parameters(blocks), _parameters(before), strict=True):
            live.grad = copied.grad
        stepper.step()
        older, newest = newest, [p.detach().clone() for p in _parameters(blocks)]
    record = trained(mlp(), 3, vectors(8), "2bw", micro=4)
    expected = newest
    seen = [p for module in record.pipeline for p in module.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


@pytest.mark.parametrize("method", ["gpipe", "1f1b"])
def test_e17_flushed_pipelines_accumulate(method):
    blocks = mlp()
    stepper = momentum(_parameters(blocks))
    for x, y in vectors(8):
        stepper.zero_grad()
        for part in range(4):
            rows = slice(2 * part, 2 * part + 2)
            (F.cross_entropy(nn.Sequential(*blocks)(x[rows]), y[rows]) / 4).backward()
        stepper.step()
    record = trained(mlp(), 3, vectors(8), method, micro=4)
    expected = [t for block in blocks for t in block.state_dict().values()]
    assert all(torch.equal(a, b) for a, b in zip(bits(record.pipeline), expected, strict=True))


@pytest.mark.parametrize("method", ["pipedream", "fr", "seq"])
def test_e20_resumed_at_a_drained_point(method, tmp_path):
    from alkit.engine import checkpoint

    whole = pipeline(mlp(dropout=0.2), 3)
    for part in (vectors(12)[:6], vectors(12)[6:]):
        last = train_epoch(whole, part, method)
    first, second = pipeline(mlp(dropout=0.2), 3), pipeline(mlp(dropout=0.2), 3)
    train_epoch(first, vectors(12)[:6], method)
    checkpoint.save(tmp_path / "state", checkpoint.snapshot(first))
    checkpoint.restore(second, checkpoint.load(tmp_path / "state"))
    assert same(train_epoch(second, vectors(12)[6:], method), last)


def test_e21_every_choice_matters():
    """Change one policy and the bits change: no test above passes for nothing."""
    runs = {
        method: trained(mlp(), 3, vectors(8), method)
        for method in (
            "seq",
            "pipedream",
            "fr",
            "pipedream_sync",
            "pipedream_inplace",
            "ddg_inplace",
        )
    }
    names = list(runs)
    equal = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if same(runs[a], runs[b])]
    assert equal == [("pipedream_inplace", "ddg_inplace")]


def test_the_oracle_of_pure_delay():
    """w <- w - 0.1 w', w' as old as the module's delay."""
    expected = {
        1: [0.9, 0.81, 0.729, 0.6561, 0.59049, 0.531441, 0.478297, 0.430467],
        2: [0.9, 0.8, 0.71, 0.63, 0.559, 0.496, 0.4401, 0.3905],
        3: [0.9, 0.8, 0.7, 0.61, 0.53, 0.46, 0.399, 0.346],
        4: [0.9, 0.8, 0.7, 0.6, 0.51, 0.43, 0.36, 0.30],
    }
    for modules, values in expected.items():
        seen = []
        blocks = [_Scalar(), *(nn.Identity() for _ in range(modules - 1))]
        made = Pipeline(
            blocks,
            lambda out, y: (out**2 / 2).sum(),
            range(1, modules),
            lambda parameters, seen=seen: _Told(parameters, seen),
        )
        train_epoch(made, [(torch.ones(1, dtype=torch.float64), torch.zeros(1))] * 8, "pipedream")
        assert seen == pytest.approx(values, abs=5e-7)


class _Scalar(nn.Module):
    def __init__(self, power=1):
        super().__init__()
        self.w, self.power = nn.Parameter(torch.ones((), dtype=torch.float64)), power

    def forward(self, x):
        return self.w**self.power * x


class _Told(torch.optim.SGD):
    def __init__(self, parameters, seen):
        super().__init__(parameters, lr=0.1)
        self.seen = seen

    def step(self):
        super().step()
        self.seen.append(self.param_groups[0]["params"][0].item())


@pytest.mark.parametrize(
    ("method", "first", "second"),
    [
        ("seq", [0.8, 0.717056, 0.6621211833], [0.9, 0.863136, 0.840317267]),
        ("ddg", [0.8, 0.638, 0.57081536], [0.9, 0.81, 0.7768224]),
        ("fr", [0.8, 0.6704, 0.6140992717], [0.9, 0.81, 0.7768224]),
    ],
)
def test_the_oracle_that_tells_ddg_from_fr(method, first, second):
    seen = [[], []]
    told = iter(seen)
    made = Pipeline(
        [_Scalar(2), _Scalar(1)],
        lambda out, y: (out**2 / 2).sum(),
        [1],
        lambda parameters: _Told(parameters, next(told)),
    )
    train_epoch(made, [(torch.ones(1, dtype=torch.float64), torch.zeros(1))] * 3, method)
    assert seen[0] == pytest.approx(first, abs=5e-10)
    assert seen[1] == pytest.approx(second, abs=5e-10)
