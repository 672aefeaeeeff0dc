"""What was silently wrong, or crashed: order of inputs, tied weights, buffers, types, metrics."""

import copy
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from alkit import launch
from alkit.elastic import Examples, Network, Recipe, Settings
from alkit.elastic.optim import Optimizer
from alkit.elastic.stage import NotFinite
from alkit.elastic.store import weights_hash
from alkit.engine.launch import RankFailed
from alkit.engine.messages import fingerprint
from tests.unit.elastic.helpers import (
    LAYERS,
    close,
    images,
    make_bert,
    make_vit,
    plain,
    texts,
    train,
)

QUIET = {"progress": False}


# ---- inputs of a text in any order


class Ordered(nn.Module):
    """BERT's embedding behind a tokenizer that gives its tensors in another order."""

    def __init__(self, embedding: nn.Module, order: str) -> None:
        super().__init__()
        self.embedding, self.order = embedding, order

    def forward(self, inputs):
        if self.order == "ids mask":
            ids, mask = inputs
            return self.embedding((ids, torch.zeros_like(ids), mask))
        ids, mask, kinds = inputs
        return self.embedding((ids, kinds, mask.bool()))


def ordered(order: str) -> tuple[Network, Examples]:
    network, data = make_bert(), texts()
    ids, kinds, mask = data.x
    x = {"ids mask": (ids, mask), "integers": (ids, mask.long(), kinds)}
    network.units[0] = Ordered(network.units[0], order)
    return network, replace(data, x=x.get(order, (ids, mask, kinds)))


@pytest.mark.parametrize("order", ["ids mask types", "ids mask", "integers"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_stored_features_keep_the_masks_of_the_first_units(order, ranks, settings):
    network, data = ordered(order)
    expected = plain(network, data, settings)
    found = train(network, data, settings=settings, devices=2, ranks=ranks, cache_from=1, **QUIET)
    assert found.losses.tolist() == pytest.approx(expected.losses, abs=1e-12)
    close(found.state, expected.state, 1e-12)
    stored = found.history.hits.sum() + found.history.advanced.sum()
    assert stored > 0 or order == "integers"  # there the mask is made, and stores hold one tensor


def test_a_mask_that_is_made_and_not_given_is_said_once(settings, caplog):
    network, data = ordered("integers")
    train(network, data, settings=settings, devices=2, cache_from=1, **QUIET)
    # what other libraries log is not asked here
    said = [record.message for record in caplog.records if record.name.startswith("alkit")]
    assert len(said) == 1, said
    assert "no features are stored" in said[0]
    assert "2 tensors" in said[0]


# ---- tied weights


def tied() -> Network:
    network = make_vit()
    network.units[7].mix.weight = network.units[1].mix.weight
    return network


@pytest.mark.parametrize("executor", ["single", "threads"])
def test_a_weight_of_two_stages_is_refused(executor, settings):
    said = (
        "stages 0 and 1 would share a parameter .mix.weight of layer 0, Attention and mix.weight"
        " of layer 3, Attention.*untie"
    )
    with pytest.raises(ValueError, match=said):
        train(tied(), images(), settings=settings, devices=2, executor=executor, **QUIET)
    with pytest.raises(ValueError, match="stages 0 and 1 would share a parameter"):
        train(tied(), images(), settings=settings, ranks=2, **QUIET)


def test_a_weight_of_two_units_in_one_stage_is_right(settings):
    settings = replace(settings, freeze="none", recipe=replace(settings.recipe, clip=0.05))
    expected = plain(tied(), images(), settings)
    found = train(tied(), images(), settings=settings, **QUIET)
    close(found.state, expected.state, 1e-12)


def test_a_weight_that_a_later_cut_divides_is_refused_before_the_first_step(settings):
    """Units 9 and 10 lie in one stage as long as nothing is frozen."""
    network = make_vit()
    assert settings.planner(network.sizes(), LAYERS).at(0)
    made = replace(settings, devices=2, stages=2, budget=1e-9)  # always two stages
    planner = made.planner(network.sizes(), LAYERS)
    first, later = (planner.at(frozen).bounds[0][1] for frozen in (0, 3))
    assert first <= 7 < later or first > 7 or first < later
    network.units[first].norm.weight = network.units[later].norm.weight
    assert later > first
    with pytest.raises(ValueError, match="would share a parameter"):
        train(network, images(), settings=made, **QUIET)


# ---- buffers


class Normed(nn.Module):
    """A unit whose running statistics have a scalar among them."""

    def __init__(self, unit: nn.Module) -> None:
        super().__init__()
        self.unit, self.norm = unit, nn.BatchNorm1d(16).double()

    def forward(self, x):
        return self.norm(self.unit(x).transpose(1, 2)).transpose(1, 2)


def normed() -> Network:
    network = make_vit()
    for number in (0, 2, 6, 8):
        network.units[number] = Normed(network.units[number])
    return network


def test_scalars_have_a_fingerprint():
    norm = nn.BatchNorm1d(3)
    before = fingerprint(norm.state_dict()), weights_hash([norm])
    norm(torch.randn(4, 3))
    assert fingerprint(norm.state_dict()) != before[0]
    assert weights_hash([norm]) != before[1]
    assert weights_hash([nn.BatchNorm1d(3).bfloat16()])


@pytest.mark.parametrize("ranks", [1, 2])
def test_batch_norm_can_be_stored_and_travels(ranks, settings):
    """Two stages, then two replicas, whose running statistics are those of the first.

    SGD: Adam makes steps of the rounding errors that a bias before a norm has for a gradient.
    """
    settings = replace(settings, micro=1, recipe=Recipe("sgd", lr=0.05))
    options = {"settings": settings, "devices": 2, "ranks": ranks, **QUIET}
    found = train(normed(), images(), cache_from=1, **options)
    assert found.history.hits.sum() > 0
    counts = [t for name, t in found.state.items() if name.endswith("num_batches_tracked")]
    frozen, active = counts[0], counts[-1]
    assert int(frozen) == 3  # steps of the first epoch
    assert int(active) == 12 if ranks == 2 else int(active) > 12
    without = train(normed(), images(), cache=False, **options)
    close(found.state, without.state, 1e-12)


# ---- types


@pytest.mark.parametrize("ranks", [1, 2])
def test_bfloat16_with_stored_features(ranks, settings):
    data = replace(images(), x=images().x.bfloat16())
    options = {"settings": settings, "devices": 2, "ranks": ranks, **QUIET}
    found = train(make_vit().bfloat16(), data, cache_from=1, **options)
    without = train(make_vit().bfloat16(), data, cache=False, **options)
    assert found.history.hits.sum() > 0
    assert torch.equal(found.losses, without.losses)
    assert all(torch.equal(found.state[name], t) for name, t in without.state.items())
    # and features of fewer digits than the network has
    short = train(make_vit(), images(), cache_from=1, cache_dtype="bfloat16", **options)
    assert torch.isfinite(short.losses).all()


# ---- a batch that won't divide later


def test_a_batch_that_a_later_layout_cannot_divide_is_refused_before_the_first_step(settings):
    asked = []
    settings = replace(settings, batch=6, devices=4)
    with pytest.raises(ValueError, match="batch of 6 does not divide among 4 replicas.*3 frozen"):
        train(_counted(asked), images(), settings=settings, **QUIET)
    assert not asked
    with pytest.raises(ValueError, match="batch of 6 does not divide"):
        train(_counted(asked), images(), settings=settings, ranks=4, **QUIET)
    for fits in (
        {"dp": False},
        {"freeze": "none"},
        {"epochs": 1},
        {"freeze": "table", "freeze_options": {"counts": [1]}},
    ):
        train(make_vit(), images(), settings=replace(settings, **fits), **QUIET)


def test_what_gradients_will_say_may_be_anything(settings):
    settings = replace(settings, batch=6, devices=4)
    for rule in ("autofreeze", "gradnorm", lambda moment: 0):
        with pytest.raises(ValueError, match="batch of 6 does not divide"):
            train(make_vit(), images(), settings=replace(settings, freeze=rule), **QUIET)


def test_a_batch_that_outgrows_the_data_is_refused_before_the_first_step(settings):
    asked = []
    growing = {"batch_policy": "fixed_per_replica", "drop_last": True}
    settings = replace(settings, batch=8, devices=4, **growing)
    with pytest.raises(ValueError, match="24 samples do not fill a batch of 32.*3 frozen"):
        train(_counted(asked), images(), settings=settings, **QUIET)
    assert not asked


def _counted(asked: list[int]) -> Network:
    network = make_vit()
    network.units[0].register_forward_hook(lambda *_: asked.append(1))
    return network


# ---- rates


@dataclass(frozen=True)
class Slow(Recipe):
    """The last unit learns ten times slower."""

    def make(self, module):
        units = list(module)
        own = [p for unit in units[:-1] for p in unit.parameters() if p.requires_grad]
        groups = [{"params": own}, {"params": list(units[-1].parameters()), "lr": self.lr / 10}]
        return torch.optim.SGD(groups, lr=self.lr)


def test_rates_of_groups_are_kept():
    network = make_vit()
    optimizer = Optimizer(network, Slow("sgd", lr=0.5, momentum=0.0))
    used = []
    optimizer.inner.register_step_pre_hook(
        lambda own, *_: used.append([group["lr"] for group in own.param_groups])
    )
    for factor in (1.0, 0.5):
        network(images().x).sum().backward()
        optimizer.step(factor)
        assert used.pop() == pytest.approx([0.5 * factor, 0.05 * factor])
    assert [group["lr"] for group in optimizer.inner.param_groups] == [0.5, 0.05]


# ---- metrics


def _mean_error(output, y):
    return (output - y).abs().mean()


def _regression() -> tuple[Network, Examples]:
    made = Network(make_vit().units, LAYERS, nn.functional.mse_loss)
    data = images()
    generator = torch.Generator().manual_seed(5)
    return made, replace(data, y=torch.randn(24, 3, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("ranks", [1, 2])
def test_numbers_are_judged_by_the_loss_and_not_as_classes(ranks, settings):
    network, data = _regression()
    parts = {"validation": data, "test": data, "metrics": {"error": _mean_error}}
    found = train(network, data, settings=settings, ranks=ranks, **parts, **QUIET)
    expected = nn.functional.mse_loss(network.predict(data.x), data.y).item()
    assert found.test_correct is None
    assert found.metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert found.metrics["error"] == pytest.approx(_mean_error(network.predict(data.x), data.y))
    last = found.history.iloc[-1]
    assert (last.val_loss, last.val_error) == pytest.approx(tuple(found.metrics.values()))


def test_labels_that_the_loss_does_not_take_are_refused_before_the_first_step(settings):
    network, data = make_vit(), images()
    asked = []
    network.units[0].register_forward_hook(lambda *_: asked.append(1))
    with pytest.raises(ValueError, match=r"does not take labels \(1, 1\) of torch.int64"):
        train(network, replace(data, y=data.y[:, None]), settings=settings, **QUIET)
    assert len(asked) == 1  # a look at one sample


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_metric_of_ones_own(ranks, settings):
    network, data = _regression()
    network.metric = _error
    found = train(
        network, data, settings=settings, validation=data, test=data, ranks=ranks, **QUIET
    )
    network.eval()
    with torch.no_grad():
        expected = _error(network(data.x), data.y)
    torch.testing.assert_close(found.test_correct.double(), expected, rtol=0, atol=1e-6)
    assert found.history.val_acc.iloc[-1] == pytest.approx(float(expected.mean()), abs=1e-6)


def _error(output, y):
    return (output - y).square().mean(1)


def test_rows_of_whole_numbers_are_judged_by_the_loss(settings):
    data = replace(images(), y=torch.zeros(24, 3, dtype=torch.int64))
    network = make_vit()
    network.loss = lambda output, y: nn.functional.mse_loss(output, y.double())
    found = train(network, data, settings=settings, test=data, **QUIET)
    assert found.test_correct is None
    expected = network.loss(network.predict(data.x), data.y).item()
    assert found.metrics["loss"] == pytest.approx(expected, rel=1e-6)


# ---- NaN


class Broken(nn.Module):
    """Passes its input on, and one that is not a number from some call on."""

    def __init__(self, unit: nn.Module, calls: int) -> None:
        super().__init__()
        self.unit, self.calls = unit, calls

    def forward(self, x):
        self.calls -= self.training
        made = self.unit(x)
        return made * math.nan if self.calls < 0 and self.training else made


@pytest.mark.parametrize("unit", [2, 7])
@pytest.mark.parametrize("executor", ["single", "threads", "ranks"])
def test_what_is_not_a_number_names_epoch_and_layer(unit, executor, settings):
    network = make_vit()
    network.units[unit] = Broken(network.units[unit], 4 * 2)  # two micro-batches a step
    settings = replace(settings, freeze="none", micro=2, devices=2)
    said = f"epoch 1, at step 4, micro-batch 0: .*layer {(unit - 1) // 2}, Broken"
    if executor == "ranks":
        with pytest.raises(RankFailed, match=said):
            train(network, images(), settings=settings, ranks=2, **QUIET)
    else:
        with pytest.raises(NotFinite, match=said):
            train(network, images(), settings=settings, executor=executor, **QUIET)


def test_a_loss_that_is_infinite_and_a_gradient_name_the_epoch(settings):
    network = make_vit()
    loss = network.loss
    network.loss = lambda output, y: loss(output, y) + math.inf
    with pytest.raises(NotFinite, match="loss is inf in epoch 0, at step 0.*in the loss itself"):
        train(network, images(), settings=settings, **QUIET)
    network = make_vit()
    network.units[2].register_full_backward_hook(
        lambda module, above, below: tuple(torch.full_like(g, math.nan) for g in above)
    )
    with pytest.raises(NotFinite, match="gradient is not finite at step 0 .*epoch 0"):
        train(network, images(), settings=settings, **QUIET)


def test_masks_may_be_infinite(settings):
    """Scores are often masked by adding minus infinity: that is no fault."""

    class Mask(nn.Module):
        def __init__(self, unit):
            super().__init__()
            self.unit = unit

        def forward(self, x):
            return self.unit(x), torch.full((len(x), 1), -math.inf)

    class First(nn.Module):
        def __init__(self, unit, last=False):
            super().__init__()
            self.unit, self.last = unit, last

        def forward(self, x):
            return self.unit(x[0]) if self.last else (self.unit(x[0]), x[1])

    network = make_vit()
    network.units[0] = Mask(network.units[0])
    for number in range(1, len(network.units)):
        network.units[number] = First(network.units[number], number == len(network.units) - 1)
    expected = plain(make_vit(), images(), replace(settings, freeze="none"))
    found = train(network, images(), settings=settings, freeze="none", devices=2, **QUIET)
    assert found.losses.tolist() == pytest.approx(expected.losses, abs=1e-12)


# ---- what travels


def _travels(settings: Settings, parts: dict) -> list[int]:
    """Return how many units' weights this rank had sent at the end of each segment, and at all."""
    import torch.distributed as dist

    from alkit.elastic import sync, trainer

    sent, ends = [], []
    before, epoch = sync._trained, trainer.Trainer.row

    def counted(network, optimizer, number):
        sent.append(number)
        return before(network, optimizer, number)

    def noted(self, trained):
        ends.append(len(sent))
        return epoch(self, trained)

    sync._trained, trainer.Trainer.row = counted, noted
    made = train(make_vit(), images(), settings, progress=False, **parts)
    dist.barrier()
    return [*ends, len(sent), len(made.losses)]


@pytest.mark.parametrize("what", ["nothing", "validation", "checkpoint", "layout"])
def test_weights_travel_only_when_somebody_needs_them(what, settings, tmp_path):
    settings = replace(settings, devices=2, executor="ranks", freeze="none")
    parts = {}
    if what == "validation":
        parts = {"validation": images(6)}
    if what == "checkpoint":
        parts = {"checkpoint": tmp_path / "run.pt"}
    if what == "layout":
        settings = replace(settings, freeze="schedule")
    first, second = launch(_travels, settings, parts, ranks=2)
    a, b = (len(range(*bounds)) for bounds in _bounds(settings))
    for own, units in ((first, a), (second, b)):
        *ends, total, steps = own
        assert steps == 12
        if what == "nothing":
            assert (ends, total) == ([0] * 4, units)
        elif what == "validation":  # after each epoch, before its row
            assert (ends, total) == ([units, 2 * units, 3 * units, 4 * units], 4 * units)
        elif what == "checkpoint":  # after each epoch
            assert (ends, total) == ([0, units, 2 * units, 3 * units], 4 * units)
        else:  # 2 stages, then 2 replicas that have it all
            assert (ends, total) == ([0, units, units, units], units)


def _bounds(settings):
    network = make_vit()
    return settings.planner(network.sizes(), LAYERS).at(0).bounds


def test_a_checkpoint_over_ranks_is_whole(settings, tmp_path):
    path = tmp_path / "run.pt"
    settings = replace(settings, freeze="none")
    expected = plain(make_vit(), images(), settings)
    train(make_vit(), images(), settings=settings, ranks=2, checkpoint=path, **QUIET)
    found = train(copy.deepcopy(make_vit()), images(), settings=settings, checkpoint=path, **QUIET)
    close(found.state, expected.state, 1e-12)
