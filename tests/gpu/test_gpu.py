"""Bits, noise, times and precision on a real accelerator."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

import alkit
from alkit.engine.random import random_from
from studies.al.networks import transformer
from tests.gpu import ALL, KIND, ONE, SIM, imported, need_one, two
from tests.helpers import full_state

pytestmark = pytest.mark.gpu
need_one()


def model(width=64, layers=4, dropout=0.3):
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout))
        for _ in range(layers)
    ]
    return alkit.to_al(blocks, 10, torch.randn(2, width))


def batches(count=4 if SIM else 50, size=256, width=64):
    torch.manual_seed(1)
    return [(torch.randn(size, width), torch.randint(10, (size,))) for _ in range(count)]


def trained(method, devices, data=None, **options):
    own = model()
    spread = [devices[at * len(devices) // len(own)] for at in range(len(own))]
    record = alkit.train_epoch(alkit.set_device(own, spread), data or batches(), method, **options)
    return {name: value.cpu() for name, value in full_state(own).items()}, record


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("devices", [[ONE], pytest.param(ALL, marks=two)], ids=len)
def test_all_modes_end_in_the_same_bits(devices):
    """Kernels in flight on one device by several threads; copies between devices."""
    expected, _ = trained("al", devices)
    for method in ("al_m", "al_fm", "al_pipeline"):
        for _ in range(1 if SIM else 10):
            assert same(expected, trained(method, devices, workers=3)[0])


def test_the_device_s_generator_is_lent():
    """Fused attention takes no generator; other threads' draws must not reach it."""
    q = torch.randn(4, 4, 128, 64, device=ONE, dtype=torch.float16)
    attend = partial(nn.functional.scaled_dot_product_attention, q, q, q, dropout_p=0.5)
    before = torch.get_device_module(ONE).get_rng_state(ONE)
    with random_from(0, 1, 2):
        one = attend()
    torch.rand(100, device=ONE)
    with random_from(0, 1, 2):
        assert torch.equal(one, attend())
    torch.get_device_module(ONE).set_rng_state(before, ONE)


def test_a_transformer_with_attention_s_dropout():
    tokens = torch.randint(1, 50, (64, 40))
    data = [((tokens, tokens > 5), torch.randint(3, (64,)))] * (2 if SIM else 20)
    torch.manual_seed(0)
    first = alkit.to_al(transformer(50, blocks=3, width=32, heads=4, ffn=64), 3, data[0][0])
    losses = [
        alkit.train_epoch(copy.deepcopy(first).to(ONE), data, method).losses
        for method in ("al", "al_pipeline", "al_pipeline")
    ]
    assert torch.equal(losses[0], losses[1])
    assert torch.equal(losses[1], losses[2])


def test_pinned_copies_do_not_change_a_bit():
    pinned = [(x.pin_memory(), y.pin_memory()) for x, y in batches()]
    assert same(trained("al_pipeline", [ONE])[0], trained("al_pipeline", [ONE], pinned)[0])


@pytest.mark.parametrize("method", ["bp", "al_pipeline"])
def test_narrow_precision_learns(method):
    torch.manual_seed(0)
    x = torch.randn(512 if SIM else 4096, 64)
    y = (x @ torch.randn(64, 10)).argmax(1)
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)]
    own = blocks if method != "bp" else [*blocks, nn.Linear(64, 10)]
    options = {"num_classes": 10} if method != "bp" else {}
    options |= {"method": method, "epochs": 5, "device": ONE, "progress": False}
    with torch.autocast(KIND.type, torch.bfloat16):
        record = alkit.fit(own, (x, y), **options)
    assert record.history.loss.iloc[-1] < record.history.loss.iloc[0]


@two
def test_ranks_of_a_device_each():
    data = torch.cat([x for x, _ in batches(4)]), torch.cat([y for _, y in batches(4)])
    options = {"method": "al_pipeline", "batch_size": 256, "cuts": [2], "progress": False}
    options |= {"callbacks": [imported]}
    here = alkit.fit(model(), data, device=ONE, **options)
    there = alkit.fit(model(), data, device=KIND.type, ranks=2, **options)
    assert torch.equal(here.losses, there.losses)
