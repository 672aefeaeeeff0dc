"""What was silently wrong, or crashed: order of inputs, tied weights, buffers, types, metrics."""

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from alkit.elastic import Examples, Network, Recipe
from alkit.elastic.optim import Optimizer
from alkit.elastic.stage import NotFinite
from alkit.engine.messages import fingerprint
from tests.unit.elastic.helpers import (
    LAYERS,
    SETTINGS,
    Found,
    close,
    images,
    make_bert,
    make_vit,
    on_devices,
    plain,
    same,
    texts,
    train,
)

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
def test_stored_features_keep_the_masks_of_the_first_units(order, two, settings, caplog):
    network, data = ordered(order)
    found = train(network, data, settings, devices=2)
    same(found, plain(*ordered(order), settings))
    if order == "ids mask types":
        same(two["masks"][0], plain(*ordered(order), settings))
    stored = found.history.hits.sum() + found.history.advanced.sum()
    assert (stored > 0) == (order != "integers")  # there the mask is made: stores hold one tensor
    # what other libraries log is not asked here
    said = [record.message for record in caplog.records if record.name.startswith("alkit")]
    assert len(said) == (order == "integers"), said
    assert all("no features are stored" in line and "2 tensors" in line for line in said)


# ---- tied weights


def tied() -> Network:
    network = make_vit()
    network.units[7].mix.weight = network.units[1].mix.weight
    return network


@pytest.mark.parametrize("where", [{"executor": "single"}, {"executor": "threads"}, {"ranks": 2}])
def test_a_weight_of_two_stages_is_refused(where, settings):
    said = (
        "stages 0 and 1 would share a parameter .mix.weight of layer 0, Attention and mix.weight"
        " of layer 3, Attention.*untie"
    )
    with pytest.raises(ValueError, match=said):
        train(tied(), images(), settings, devices=2, **where)


def test_a_weight_of_two_units_in_one_stage_is_right(settings):
    settings = replace(settings, freeze="none", recipe=replace(settings.recipe, clip=0.05))
    expected = plain(tied(), images(), settings)
    found = train(tied(), images(), settings)
    close(found, expected)


def test_a_weight_that_a_later_cut_divides_is_refused_before_the_first_step(settings):
    """Units that lie in one stage as long as nothing is frozen."""
    network = make_vit()
    made = replace(settings, devices=2, stages=2, budget=1e-9)  # always two stages
    planner = made.planner(network.sizes(), LAYERS)
    first, later = (planner.at(frozen).bounds[0][1] for frozen in (0, 3))
    assert later > first
    network.units[first].norm.weight = network.units[later].norm.weight
    with pytest.raises(ValueError, match="would share a parameter"):
        train(network, images(), made)


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
    before = fingerprint(norm.state_dict())
    norm(torch.randn(4, 3))
    assert fingerprint(norm.state_dict()) != before


# SGD: Adam makes steps of the rounding errors that a bias before a norm has for a gradient
NORMED = replace(SETTINGS, micro=1, recipe=Recipe("sgd", lr=0.05))


@pytest.mark.parametrize("ranks", [1, 2])
def test_batch_norm_can_be_stored_and_travels(ranks, request):
    """Two stages, then two replicas, whose running statistics are those of the first."""
    if ranks == 2:
        found, without = (request.getfixturevalue("two")[name][0] for name in ("norms", "computed"))
    else:
        found, without = (
            train(normed(), images(), NORMED, devices=2, **options)
            for options in ({}, {"cache": False})
        )
    assert found.history.hits.sum() > 0
    counts = [t for name, t in found.state.items() if name.endswith("num_batches_tracked")]
    frozen, active = counts[0], counts[-1]
    assert int(frozen) == 3  # steps of the first epoch
    assert int(active) == 12 if ranks == 2 else int(active) > 12
    close(found, without)


# ---- types


def bfloat16() -> tuple[Network, Examples]:
    return make_vit().bfloat16(), replace(images(), x=images().x.bfloat16())


def test_bfloat16_with_stored_features(two, settings):
    without = train(*bfloat16(), settings, devices=2, cache=False)
    for found in (train(*bfloat16(), settings, devices=2), *two["bfloat16"]):
        assert found.history.hits.sum() > 0
        assert torch.equal(found.losses, without.losses)
        assert all(torch.equal(found.state[name], t) for name, t in without.state.items())


# ---- a batch that won't divide later


DIVIDES_NOT = "batch of 6 does not divide among 4 replicas.*3 frozen"
LATER = [
    ({"batch": 6}, DIVIDES_NOT),
    ({"batch": 6, "ranks": 4}, DIVIDES_NOT),
    *(({"batch": 6, "freeze": rule}, "batch of 6 does not divide")  # it may say anything
      for rule in ("gradnorm", lambda moment: 0)),
    ({"batch_policy": "fixed_per_replica", "drop_last": True},
     "24 samples do not fill a batch of 32.*3 frozen"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), LATER)
def test_what_a_later_layout_cannot_do_is_refused_before_the_first_step(changes, said, settings):
    network, asked = make_vit(), []
    network.units[0].register_forward_hook(lambda *_: asked.append(1))
    with pytest.raises(ValueError, match=said):
        train(network, images(), settings, devices=4, **changes)
    assert not asked


@pytest.mark.parametrize("fits", [{"dp": False}, {"freeze": "none"}, {"epochs": 1}], ids=str)
def test_a_batch_that_will_divide_is_taken(fits, settings):
    train(make_vit(), images(), settings, batch=6, devices=4, **fits)


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


def _numbers(metric: Any = None, **own: Any) -> Found:
    network, data = _regression()
    network.metric = metric
    parts = {"validation": data, "test": data}
    parts |= {} if metric else {"metrics": {"error": _mean_error}}
    return train(network, data, SETTINGS, **parts, **own)


def _error(output, y):
    return (output - y).square().mean(1)


def test_numbers_are_judged_by_the_loss_and_not_as_classes(two):
    found, (_, data) = two["numbers"][0], _regression()
    scores = found.model.predict(data.x)
    expected = {
        "loss": nn.functional.mse_loss(scores, data.y),
        "error": _mean_error(scores, data.y),
    }
    assert found.test_correct is None
    assert found.metrics == {name: pytest.approx(float(own)) for name, own in expected.items()}
    last = found.history.iloc[-1]
    assert (last.val_loss, last.val_error) == pytest.approx(tuple(found.metrics.values()))


def test_a_metric_of_ones_own_and_rows_judged_by_the_loss(two, settings):
    found, (_, data) = two["own metric"][0], _regression()
    expected = _error(found.model.predict(data.x), data.y)
    torch.testing.assert_close(found.test_correct.double(), expected, rtol=0, atol=1e-6)
    assert found.history.val_acc.iloc[-1] == pytest.approx(float(expected.mean()), abs=1e-6)
    data = replace(images(), y=torch.zeros(24, 3, dtype=torch.int64))
    network = make_vit()
    network.loss = lambda output, y: nn.functional.mse_loss(output, y.double())
    found = train(network, data, settings, test=data)
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


@pytest.mark.parametrize(("unit", "executor"), [(2, "single"), (7, "single"), (7, "threads")])
def test_what_is_not_a_number_names_epoch_and_step(unit, executor, settings):
    network = make_vit()
    network.units[unit] = Broken(network.units[unit], 4 * 2)  # two micro-batches a step
    said = "epoch 1, at step 4, micro-batch 0; the learning rate is"
    with pytest.raises(NotFinite, match=said):
        train(network, images(), settings, freeze="none", micro=2, devices=2, executor=executor)


def test_a_loss_that_is_infinite_and_a_gradient_name_the_epoch(settings):
    network = make_vit()
    loss = network.loss
    network.loss = lambda output, y: loss(output, y) + math.inf
    with pytest.raises(NotFinite, match="loss is inf in epoch 0, at step 0, micro-batch 0"):
        train(network, images(), settings)
    network = make_vit()
    network.units[2].register_full_backward_hook(
        lambda module, above, below: tuple(torch.full_like(g, math.nan) for g in above)
    )
    said = "gradient is not finite at step 0 .*epoch 0.*(Patches|layer 0)"
    with pytest.raises(NotFinite, match=said):
        train(network, images(), settings)


def test_masks_may_be_infinite(settings):
    """Scores are often masked by adding minus infinity: that is no fault."""

    class Masked(nn.Module):
        def __init__(self, unit, first, last):
            super().__init__()
            self.unit, self.first, self.last = unit, first, last

        def forward(self, x):
            x, mask = (x, torch.full((len(x), 1), -math.inf)) if self.first else x
            return self.unit(x) if self.last else (self.unit(x), mask)

    network = make_vit()
    for number, unit in enumerate(network.units):
        network.units[number] = Masked(unit, number == 0, number == len(network.units) - 1)
    expected = plain(make_vit(), images(), replace(settings, freeze="none"))
    found = train(network, images(), settings, freeze="none", devices=2)
    assert found.losses.tolist() == pytest.approx(expected.losses, abs=1e-12)


# ---- what travels


def _sent(folder: Path, **own: Any) -> dict[str, list[int]]:
    """Return how many units' weights this rank had sent at the end of each segment, and at all."""
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
    parts = {"nothing": {}, "validation": {"validation": images(6)}}
    parts |= {"checkpoint": {"checkpoint": folder / "run.pt"}, "layout": {"freeze": "schedule"}}
    found = {}
    for name, options in parts.items():
        sent.clear()
        ends.clear()
        made = train(make_vit(), images(), SETTINGS, **{"freeze": "none"} | options | own)
        dist.barrier()
        assert len(made.losses) == 12
        found[name] = [*ends, len(sent)]
    sync._trained, trainer.Trainer.row = before, epoch
    return found


def test_weights_travel_only_when_somebody_needs_them(two, folder, settings):
    settings, network = replace(settings, devices=2, freeze="none"), make_vit()
    bounds = settings.planner(network.sizes(), LAYERS).at(0).bounds
    for own, (first, last) in zip(two["sent"], bounds, strict=True):
        n = last - first  # a rank's units
        assert own == {
            "nothing": [0, 0, 0, 0, n],
            "validation": [n, 2 * n, 3 * n, 4 * n, 4 * n],  # after each epoch, before its row
            "checkpoint": [0, n, 2 * n, 3 * n, 4 * n],  # after each epoch
            "layout": [0, n, n, n, n],  # 2 stages, then 2 replicas that have it all
        }
    # and the checkpoint of ranks is whole
    kept = train(network, images(), settings, checkpoint=folder / "run.pt")
    close(kept, plain(make_vit(), images(), settings))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def two(folder):
    """What two ranks find, one run after the other."""
    return on_devices({
        "masks": partial(train, *ordered("ids mask types"), SETTINGS),
        "norms": partial(train, normed(), images(), NORMED),
        "computed": partial(train, normed(), images(), NORMED, cache=False),
        "bfloat16": partial(train, *bfloat16(), SETTINGS),
        "numbers": _numbers,
        "own metric": partial(_numbers, _error),
        "sent": partial(_sent, folder),
    })  # fmt: skip
