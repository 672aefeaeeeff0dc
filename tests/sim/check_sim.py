"""What only the simulated accelerator shows: who waits for it, the CPU's bits, where memory is."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alkit
from alkit.base import tree
from alkit.data.parts import DataSet, Part
from alkit.engine.random import _draws, random_from
from alkit.split.half import SGD, Half
from studies.al import families
from tests.helpers import dense_model, differences, full_state, made_batches
from tests.sim.device import operators, start
from tests.unit.split.helpers import samples, units

COUNT = start()
if COUNT < 2:
    pytest.skip("no C++ compiler: the simulated device has no generators", allow_module_level=True)
WAITS = ("to host", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim")
MODES = {"al": 1, "al_m": 3, "al_fm": None, "al_pipeline": 3}


def waits(train):
    operators.clear()
    train()
    return sum(operators[name] for name in WAITS)


# an LSTM's texts are packed, for which the host reads their lengths
@pytest.mark.parametrize("family", ["vgg", "resnet", "transformer", "dense"])
def test_the_host_waits_for_a_layer_s_losses_and_for_nothing_else(family):
    """Copies to the host, and operators whose result's size the host must know."""
    if family == "dense":
        model, batches = dense_model(3), made_batches(2)
    else:
        x, y = torch.randn(8, 3, 32, 32), torch.arange(8) % 3
        sizes = {"width": 0.0625}
        if family == "transformer":
            x, sizes = (
                x[:, 0, 0, :7].abs().long() + 2,
                {"blocks": 2, "width": 8, "heads": 2, "ffn": 8},
            )
        part = Part(x, y, 3)
        data = DataSet("made up", part, part, part, 3, tuple("abc"), "w" * 30)
        model = families.model(family, data, "al", recipe="detached", **sizes)
        batches = list(data.train.batches(4))
    alkit.set_device(model, ["sim:0"] * len(model))
    more = batches * (8 // len(batches))
    assert waits(lambda: alkit.train_epoch(model, more, workers=2)) == len(model)
    assert waits(lambda: alkit.train_epoch(model, batches, "al")) == len(model)


@pytest.mark.parametrize("method", ["ddg", "pipedream", "1f1b"])
def test_delayed_gradients_wait_for_losses_and_between_devices(method):
    blocks = [nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3)) for _ in range(3)] + [nn.Linear(6, 3)]
    pipeline = alkit.delayed.Pipeline(blocks, F.cross_entropy, [2])
    alkit.set_device(pipeline, ["sim:0", "sim:1"])
    batches = [(x, y.argmax(1)) for x, y in made_batches(8)]
    micro = {"micro": 2} if alkit.delayed.METHODS[method].accumulates else {}
    train = partial(alkit.delayed.train_epoch, pipeline, batches, method, "threads", **micro)
    assert waits(train) == 1


@pytest.mark.parametrize("places", [["sim:0"] * 3, ["cpu", "sim:0", "sim:1"]], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_layers_with_dropout_and_batchnorm_have_the_cpu_s_bits(mode, places):
    here, there = dense_model(3), alkit.set_device(dense_model(3), places)
    expected = alkit.train_epoch(here, made_batches(4), "al", seed=3).losses
    found = alkit.train_epoch(there, made_batches(4), mode, MODES[mode], seed=3).losses
    assert torch.equal(expected, found)
    states = ({n: value.cpu() for n, value in full_state(m).items()} for m in (here, there))
    assert differences(*states) == []


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d])
def test_dropout_has_the_bits_of_the_cpu(kind, p):
    x, layer, found = torch.randn(1, 4, 7, 33), kind(p), []
    for place in ("cpu", "sim:0", "sim:1"):
        with random_from(1, 2):
            found.append(layer(x.to(place)).cpu())
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_cudnn_s_recurrent_layers():
    """Without dropout they draw nothing; with it they would, and are refused."""
    op = torch.ops.aten._cudnn_rnn.default
    place = [argument.name for argument in op._schema.arguments].index("dropout")
    assert not _draws(op, (*[None] * place, 0.0), {})
    assert _draws(op, (*[None] * place, 0.5), {})


def test_halves_of_split_learning_take_and_give_host_memory():
    own = [unit.to("sim:0") for unit in units()]
    make = partial(SGD, lr=0.01)
    head, tail = Half(own[:2], make), Half(own[2:], make, first=2, stage=1, is_last=True)
    part = head.forward([(*samples(6), 1.0)], 0, 0)
    tail.forward(part, 0, 0)
    gradient = tail.backward(None, 0, 0)
    head.backward(gradient, 0, 0)
    head.update(None, 0, 0)
    given = part, gradient, head.state(), tail.state()
    assert {tensor.device.type for tensor in tree.tensors(given)} == {"cpu"}


def test_what_cannot_be_had_is_said():
    x, y = torch.randn(16, 6), torch.arange(16) % 3
    blocks = [nn.Linear(6, 6), nn.Linear(6, 3)]
    for device, words in (
        ("cuda", "unknown device 'cuda': this machine has cpu, sim:0"),
        (["sim:0"] * 9, "9 devices for 2 layers: give 1 to 2"),
    ):
        with pytest.raises(ValueError, match=words):
            alkit.fit(blocks, (x, y), method="bp", device=device, progress=False)
    with pytest.raises(ValueError, match="2 devices, and a network is on one"):
        alkit.fit(blocks, (x, y), method="dtp", device=["sim:0", "sim:1"], progress=False)


def test_devices_are_not_mixed_unseen():
    model = alkit.set_device(dense_model(2), ["sim:0", "sim:0"])
    with pytest.raises(RuntimeError, match="on the same device"):
        model[1](made_batches(1)[0][0], made_batches(1)[0][1])
