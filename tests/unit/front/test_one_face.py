"""alkit.fit: one call for every method, from blocks and tensors; what can't be taken is refused."""

import copy

import pytest
import torch
from torch import nn

import alkit
from alkit.data.datasets import load
from alkit.data.parts import Part
from alkit.delayed import Pipeline
from alkit.delayed.methods import METHODS as DELAYED
from alkit.split.settings import TABLE as SPLIT
from tests.helpers import state_of
from tests.unit.elastic.helpers import images, make_vit

C, WIDTH = 3, 8


def blocks(outputs=C):
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2)]
    return [*hidden, nn.Linear(WIDTH, outputs)]


def tensors(count=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, WIDTH, generator=generator)
    return x, x[:, :C].argmax(1)


def options(method):
    parts = method in DELAYED and DELAYED[method].accumulates
    own = {"micro": 4} if parts else {}
    return {"method": method, "batch_size": 16, "progress": False} | own


def test_a_set_brings_all_parts_and_one_part_no_test():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
    asked = {"method": "bp", "batch_size": 64, "progress": False}
    assert alkit.fit(net, load("digits"), **asked).test_correct.shape == (360,)
    record = alkit.fit(copy.deepcopy(net), load("digits").train, epochs=3, **asked)
    assert (record.best_epoch, record.test_acc, record.metrics) == (3, None, {})
    assert "val_acc" not in record.history


def test_the_same_bits_as_the_methods_own_calls():
    x, y = tensors()
    twin, model = (alkit.to_al(blocks(), C, x[:2]) for _ in range(2))
    alkit.fit(model, Part(x, y, C), method="al_pipeline", batch_size=16, seed=3, progress=False)
    alkit.train_epoch(twin, Part(x, y, C).batches(16, seed=3), "al", seed=3)
    own, other = state_of(model), state_of(twin)
    assert all(torch.equal(own[name], other[name]) for name in own)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"method": "sgd"}, "unknown method 'sgd'.*: give bp, al"),
        ({"method": "dtp", "cuts": [1]}, "unknown settings cuts: there are .*beta"),
        ({"method": "elastic", "augment": "weak"}, "unknown settings augment.*: there are freeze"),
        ({"method": "al", "micro": 2}, "unknown settings micro: there are pool"),
        ({"method": "al", "ranks": 2}, "there are 2 ranks, and al runs in one process"),
        ({"method": "splitfed", "patience": 2}, "splitfed takes no patience=: give callbacks="),
        ({"method": "splitfed", "cuts": [1, 2, 1]}, "a network is split once"),
        ({"method": "pipedream", "recipe": "mse"}, "unknown settings recipe.*: there are"),
        ({"method": "fr", "lr": {"enc": 0.1, "ae": 0.1}}, "fr takes one number"),
        ({"method": "fr", "cuts": [1], "workers": 3}, "workers is 3, which fr can't take: cuts"),
        ({"method": "al", "loss": nn.functional.mse_loss}, "the loss does not take scores"),
    ],
)
def test_nothing_is_ignored(asked, message):
    with pytest.raises((TypeError, ValueError), match=message):
        alkit.fit(blocks(), tensors(), tensors(), progress=False, **asked)


def test_models_of_their_own_refuse_what_they_have_and_data_what_can_t_be_read():
    pipeline = Pipeline(blocks(), nn.functional.cross_entropy, [1])
    with pytest.raises(TypeError, match="cuts= is for blocks: the pipeline has its own"):
        alkit.fit(pipeline, tensors(), cuts=[1], progress=False)
    part = Part(images().x.float(), images().y, 10)
    with pytest.raises(ValueError, match="workers is 3, which elastic can't take: with ranks"):
        alkit.fit(make_vit().float(), part, ranks=2, workers=3, progress=False)
    with pytest.raises(TypeError, match="which can't be read twice"):
        alkit.fit(blocks(), iter([tensors()]), method="bp")
    with pytest.raises(TypeError, match=r"give \(x, y\), a Dataset"):
        alkit.fit(blocks(), 3, method="bp")
    folded = [nn.Sequential(nn.Linear(8, 6), nn.Unflatten(1, (2, 3)))]
    with pytest.raises(ValueError, match="give num_classes="):
        alkit.fit(folded, [tensors()], method="al")


def test_methods_say_which_waits_they_remove():
    removes = {name: method.removes for name, method in alkit.METHODS.items()}
    assert removes["al"] == removes["al_fm"] == ("backward", "weights")
    assert removes["al_m"] == ("weights",)  # its backwards wait for all forwards
    assert removes["al_pipeline"] == ("backward", "update", "weights")
    assert removes["pipedream"] == removes["fr"] == removes["2bw"] == ("update",)
    # these shrink or overlap work, and wait as backprop does
    waiting = ("bp", "seq", "gpipe", "1f1b", "elastic", *SPLIT)
    assert {removes[name] for name in waiting} == {()}
    # targets still descend, but not through the forward weights of others
    assert {removes[name] for name in ("dtp", "vanilla_dtp", "tp")} == {("weights",)}
    assert not any("forward" in waits for waits in removes.values())


@pytest.mark.parametrize("method", ["bp", "al", "pipedream", "1f1b", "pipelearn", "elastic", "dtp"])
def test_what_is_not_finite_or_of_another_type_is_told_alike(method):
    x, y = tensors()
    # what numpy and scikit-learn give is double: it is told before anything trains
    with pytest.raises(ValueError, match="does not take the first batch.*torch.float64"):
        alkit.fit(blocks(), (x.double(), y), **options(method))
    x[40, 0] = float("inf")
    with pytest.raises(FloatingPointError, match="not finite|is nan"):
        alkit.fit(blocks(), (x, y), epochs=3, **options(method))


@pytest.mark.parametrize("method", ["bp", "al", "pipedream", "pipelearn", "elastic", "dtp"])
def test_images_of_bytes_train_as_the_same_images_scaled(method):
    """CIFAR-10 and tiny ImageNet are kept as bytes."""
    drawn = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (48, 3, 4, 4), dtype=torch.uint8, generator=drawn)
    kept = Part(x, x[:, 0, 0, 0].long() % C, C, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    asked = {"method": method, "batch_size": 16, "lr": 0.01, "progress": False}
    asked |= {"iterations": 1} if method == "dtp" else {}
    found = []
    for part in (kept, kept.floats()):
        torch.manual_seed(1)
        net = [nn.Sequential(nn.Flatten(), nn.Linear(48, WIDTH), nn.ELU()), *blocks()[1:]]
        found.append(alkit.fit(net, part, part, part, **asked))
    assert torch.equal(found[0].losses, found[1].losses)
    assert torch.equal(found[0].test_correct, found[1].test_correct)


@pytest.mark.parametrize("method", ["bp", "pipedream", "elastic", "dtp"])
def test_numbers_are_not_compared_as_classes_nor_spread_over_scores(method):
    x, _ = tensors()
    with pytest.raises(ValueError, match="numbers to predict need mean squared errors"):
        alkit.fit(blocks(), (x, x[:, :1]), **options(method))
    ends_in_one = blocks(1)
    asked = options(method) | {"loss": nn.functional.mse_loss}
    with pytest.raises(ValueError, match=r"over scores \(16, 1\) .* give y\[:, None\]"):
        alkit.fit(ends_in_one, (x, x[:, 0]), **asked)
    alkit.fit(ends_in_one, (x, x[:, :1]), lr=0.01, **asked)


@pytest.mark.parametrize("method", ["bp", "pipedream"])
def test_where_targets_are_numbers_the_epoch_of_the_lowest_loss_is_the_best(method):
    x, _ = tensors(16)
    generator = torch.Generator().manual_seed(4)
    y, other = (torch.randn(16, 1, generator=generator) for _ in range(2))  # learned by heart
    asked = options(method) | {"loss": nn.functional.mse_loss, "epochs": 12, "lr": 0.1}
    record = alkit.fit(blocks(1), (x, y), (x, other), (x, other), **asked)
    losses = record.history.val_loss
    assert record.best_epoch == losses.idxmin() + 1 < 12
    assert record.metrics["loss"] == pytest.approx(losses.min(), rel=1e-5)
