"""Noise on an accelerator is a function of its key, too; the CPU's where operators agree."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit.engine.random import random_from
from tests.sim.device import start

COUNT = start()
if COUNT < 2:
    pytest.skip("no C++ compiler: the simulated device has no generators", allow_module_level=True)
DEVICES = [f"sim:{i}" for i in range(COUNT)]


def drawn(function, *key):
    with random_from(*key):
        return function()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d])
def test_dropout_has_the_bits_of_the_cpu(kind, device, p):
    x, layer = torch.randn(1, 4, 7, 33), kind(p)
    here, there = x.clone().requires_grad_(), x.to(device).requires_grad_()
    one, other = drawn(lambda: layer(here), 1, 2), drawn(lambda: layer(there), 1, 2)
    assert torch.equal(one, other.cpu())
    one.sum().backward()
    other.sum().backward()
    assert torch.allclose(here.grad, there.grad.cpu(), rtol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_without_dropout_nothing_is_drawn(device):
    x = torch.randn(4, 8, device=device)
    with random_from(0) as _:
        assert torch.equal(F.dropout(x, 0.0).cpu(), x.cpu())
        assert torch.equal(F.dropout(x, 0.5, training=False).cpu(), x.cpu())


@pytest.mark.parametrize("device", DEVICES)
def test_attention_draws_by_its_key(device):
    q = torch.randn(2, 1, 4, 8, device=device)
    attend = lambda: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5).cpu()  # noqa: E731
    assert torch.equal(drawn(attend, 0, 1), drawn(attend, 0, 1))
    assert not torch.equal(drawn(attend, 0, 1), drawn(attend, 0, 2))


def test_an_operator_without_generator_borrows_the_device_s_own():
    """native_dropout_ stands for what has no twin: the device's own stream goes on untouched."""
    from alkit.engine import random as module

    generator = module.generator_for(3, device="sim:0")
    torch.sim.manual_seed_all(5)
    before = torch.sim.get_rng_state("sim:0")
    draws = []

    def work():
        own = module.generator_for(3, device="sim:0")
        for _ in range(20):
            with module._lent(own):
                mask = torch.ops.aten.native_dropout(torch.ones(50, device="sim:0"), 0.5, True)[1]
            draws.append(mask.cpu())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(before, torch.sim.get_rng_state("sim:0"))
    with module._lent(generator):
        first = torch.ops.aten.native_dropout(torch.ones(50, device="sim:0"), 0.5, True)[1]
    assert sum(torch.equal(first.cpu(), mask) for mask in draws) == 4  # the first of each thread


def test_a_block_on_two_devices_has_a_stream_a_device():
    def draw():
        return [F.dropout(torch.ones(64, device=device), 0.5).cpu() for device in DEVICES]

    one, other = drawn(draw, 4), drawn(lambda: draw()[::-1][::-1], 4)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_cudnn_s_recurrent_layers():
    """Without dropout they draw nothing; with it they would, and are refused."""
    from alkit.engine.random import _draws

    op = torch.ops.aten._cudnn_rnn.default
    place = [argument.name for argument in op._schema.arguments].index("dropout")
    assert not _draws(op, (*[None] * place, 0.0), {})
    assert _draws(op, (*[None] * place, 0.5), {})
