"""What was silently wrong, or crashed: order of inputs, tied weights, buffers, types, metrics."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from alkit.data.parts import Pairs
from alkit.elastic import Network
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
    planner,
    same,
    sgd,
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


def ordered(order: str) -> tuple[Network, Pairs]:
    network, data = make_bert(), texts()
    ids, kinds, mask = data.x
    x = {"ids mask": (ids, mask), "integers": (ids, mask.long(), kinds)}
    network.units[0] = Ordered(network.units[0], order)
    return network, Pairs(x.get(order, (ids, mask, kinds)), data.y)


@pytest.mark.parametrize("order", ["ids mask types", "ids mask", "integers"])
def test_stored_features_keep_the_masks_of_the_first_units(order, two):
    network, data = ordered(order)
    found = train(network, data, SETTINGS, workers=2)
    same(found, plain(*ordered(order), SETTINGS))
    if order == "ids mask types":
        same(two["masks"][0], plain(*ordered(order), SETTINGS))
    assert found.history.hits.sum() + found.history.advanced.sum() > 0


# ---- tied weights


def tied() -> Network:
    network = make_vit()
    network.units[7].f.out_proj.weight = network.units[1].f.out_proj.weight
    return network


@pytest.mark.parametrize("where", [{"workers": 2}, {"ranks": 2}])
def test_a_weight_of_two_stages_is_refused(where):
    with pytest.raises(
        ValueError, match="stages 0 and 1 share a parameter .*out_proj.weight.*untie"
    ):
        train(tied(), images(), SETTINGS, **where)


def test_a_weight_of_two_units_in_one_stage_is_right():
    settings = SETTINGS | {"freeze": "none", "clip": 0.05}
    expected = plain(tied(), images(), settings)
    found = train(tied(), images(), settings)
    close(found, expected)


def test_a_weight_that_a_later_cut_divides_is_refused_before_the_first_step():
    """Units that lie in one stage as long as nothing is frozen."""
    network = make_vit()
    made = SETTINGS | {"budget": 1e-9}  # always two stages
    layouts = planner(network, made)
    first, later = (layouts.at(frozen).bounds[0][1] for frozen in (0, 3))
    assert later > first
    network.units[first].norm.weight = network.units[later].norm.weight
    with pytest.raises(ValueError, match="share a parameter"):
        train(network, images(), made, workers=2)


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
NORMED = SETTINGS | {"micro": 1, "optimizer": sgd, "lr": 0.05}


@pytest.mark.parametrize("ranks", [1, 2])
def test_batch_norm_can_be_stored_and_travels(ranks, request):
    """Two stages, then two replicas, whose running statistics are those of the first."""
    if ranks == 2:
        found, without = (request.getfixturevalue("two")[name][0] for name in ("norms", "computed"))
    else:
        found, without = (
            train(normed(), images(), NORMED, workers=2, **options)
            for options in ({}, {"cache": False})
        )
    assert found.history.hits.sum() > 0
    counts = [t for name, t in found.state.items() if name.endswith("num_batches_tracked")]
    frozen, active = counts[0], counts[-1]
    assert int(frozen) == 3  # steps of the first epoch
    assert int(active) == 12 if ranks == 2 else int(active) > 12
    close(found, without)


# ---- types


def bfloat16() -> tuple[Network, Pairs]:
    return make_vit().bfloat16(), Pairs(images().x.bfloat16(), images().y)


def test_bfloat16_with_stored_features(two):
    without = train(*bfloat16(), SETTINGS, workers=2, cache=False)
    for found in (train(*bfloat16(), SETTINGS, workers=2), *two["bfloat16"]):
        assert found.history.hits.sum() > 0
        assert torch.equal(found.losses, without.losses)
        assert all(torch.equal(found.state[name], t) for name, t in without.state.items())


# ---- a batch that does not divide


@pytest.mark.parametrize("ranks", [1, 2])
def test_replicas_may_have_unequal_parts_of_a_batch(ranks, two):
    """Two replicas of three samples, three, or four of one or two: what a part weighs is exact."""
    settings = SETTINGS | {"batch_size": 5, "scheduler": None}
    if ranks == 2:
        found = two["uneven"][0]
    else:
        found = train(make_vit(), images(), settings, workers=4)
        assert found.history.replicas.max() == 4
    same(found, plain(make_vit(), images(), settings))


# ---- metrics


def _mean_error(output, y):
    return (output - y).abs().mean()


def _regression() -> tuple[Network, Pairs]:
    made = Network(make_vit().units, LAYERS, nn.functional.mse_loss)
    data = images()
    generator = torch.Generator().manual_seed(5)
    return made, Pairs(data.x, torch.randn(24, 3, generator=generator, dtype=torch.float64))


def _numbers() -> Found:
    network, data = _regression()
    parts = {"validation": data, "test": data, "metrics": {"error": _mean_error}}
    return train(network, data, SETTINGS, **parts)


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


def test_rows_are_judged_by_the_loss():
    data = Pairs(images().x, torch.zeros(24, 3, dtype=torch.int64))
    network = make_vit()
    network.loss = lambda output, y: nn.functional.mse_loss(output, y.double())
    found = train(network, data, SETTINGS, test=data)
    assert found.test_correct is None
    expected = network.loss(network.predict(data.x), data.y).item()
    assert found.metrics["loss"] == pytest.approx(expected, rel=1e-6)


# ---- NaN


def _broken(made: Any, value: float, calls: int) -> Any:
    """Return a loss to which a value is added from some call on."""
    left = iter(range(calls))
    return lambda *given: made(*given) + (0.0 if next(left, None) is not None else value)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_the_run(value):
    network = make_vit()
    network.loss = _broken(network.loss, value, 4 * 2)  # two micro-batches a step
    with pytest.raises(FloatingPointError, match=f"the loss is {value} at batch 1 of the epoch"):
        train(network, images(), SETTINGS, freeze="none", micro=2, workers=2)


def test_an_output_and_a_gradient_that_are_not_finite_end_the_run():
    network = make_vit()
    network.units[2].register_forward_hook(lambda unit, given, output: output * math.nan)
    with pytest.raises(FloatingPointError, match="loss is nan at batch 0"):
        train(network, images(), SETTINGS)
    network = make_vit()
    network.units[2].register_full_backward_hook(
        lambda module, above, below: tuple(torch.full_like(g, math.nan) for g in above)
    )
    with pytest.raises(FloatingPointError, match="loss is nan at batch 1"):
        train(network, images(), SETTINGS)


def test_masks_may_be_infinite():
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
    expected = plain(make_vit(), images(), SETTINGS | {"freeze": "none"})
    found = train(network, images(), SETTINGS, freeze="none", workers=2)
    assert found.losses.tolist() == pytest.approx(expected.losses, abs=1e-12)


# ---- what travels


def _sent(folder: Path) -> dict[str, list[int]]:
    """Return how many units' weights this rank had sent at the end of each segment, and at all."""
    from alkit.elastic import trainer, units

    sent, ends = [], []
    before, epoch = units.Units._trained, trainer.Trainer.row

    def counted(self, number, **options):
        sent.append(number)
        return before(self, number, **options)

    def noted(self, trained):
        ends.append(len(sent))
        return epoch(self, trained)

    units.Units._trained, trainer.Trainer.row = counted, noted
    parts = {"nothing": {}, "validation": {"validation": images(6)}}
    parts |= {"checkpoint": {"checkpoint": folder / "run.pt"}, "layout": {"freeze": "schedule"}}
    found = {}
    for name, options in parts.items():
        sent.clear()
        ends.clear()
        made = train(make_vit(), images(), SETTINGS, **{"freeze": "none"} | options, ranks=2)
        dist.barrier()
        assert len(made.losses) == 12
        found[name] = [*ends, len(sent)]
    units.Units._trained, trainer.Trainer.row = before, epoch
    return found


def test_weights_travel_only_when_somebody_needs_them(two, folder):
    settings, network = SETTINGS | {"freeze": "none"}, make_vit()
    bounds = planner(network, settings).at(0).bounds
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
        "uneven": partial(train, make_vit(), images(), SETTINGS, batch_size=5, scheduler=None),
        "sent": partial(_sent, folder),
    })  # fmt: skip
