"""Associated learning and backprop on simulated devices end in the bits of the CPU."""

import threading

import pytest
import torch

from alkit import set_device, train_epoch
from alkit.al.backprop import BPModel
from alkit.al.convert import to_al, to_bp
from studies.al.networks import transformer
from tests.helpers import dense_model, full_state, made_batches
from tests.sim.device import start

COUNT = start()
if COUNT < 2:
    pytest.skip("no C++ compiler: the simulated device has no generators", allow_module_level=True)
PLACES = [["sim:0"] * 3, ["cpu", "sim:0", f"sim:{COUNT - 1}"]]
MODES = {
    "al": 1,
    "al_m": 3,
    "al_fm": None,
    "al_pipeline": 3,
    "al_pipeline, free": 2,
}


def state(model):
    return {name: value.cpu() for name, value in full_state(model).items()}


def unlike(one, other):
    return [name for name, value in one.items() if not torch.equal(value, other[name])]


@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_layers_with_dropout_and_batchnorm(mode, places):
    here, there = dense_model(3), set_device(dense_model(3), places)
    expected = train_epoch(here, made_batches(4), "al", seed=3).losses
    found = train_epoch(there, made_batches(4), mode.split(",")[0], MODES[mode], seed=3).losses
    assert torch.equal(expected, found)
    assert unlike(state(here), state(there)) == []


def token_batches(count, padded=False):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        tokens = torch.randint(1, 20, (4, 5), generator=generator)
        yield (tokens, tokens > (3 if padded else 0)), torch.randint(3, (4,), generator=generator)


def transformer_model(kind):
    torch.manual_seed(0)
    blocks = transformer(20, blocks=2, width=8, heads=2, ffn=8, dropout=0.3)
    sample = (torch.zeros(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.bool))
    make = to_bp if kind == "bp" else to_al
    return make(blocks, 3, sample)


@pytest.mark.parametrize("kind", ["bp", "al"])
def test_a_transformer_s_noise_does_not_depend_on_where_its_blocks_are(kind):
    """Dropout of embeddings, feed-forward parts and attention; kernels of attention differ."""
    here, there = transformer_model(kind), spread_out(transformer_model(kind))
    data = list(token_batches(4))
    one, other = (train_epoch(model, data, kind, seed=1) for model in (here, there))
    assert torch.allclose(one.losses, other.losses, rtol=1e-5)
    assert isinstance(here, BPModel) == (kind == "bp")


@pytest.mark.parametrize("kind", ["bp", "al"])
def test_with_padding_too_among_devices_of_a_kind(kind):
    """An accelerator works on padding, the CPU does not: their noise is then another."""
    here, there = transformer_model(kind).to("sim:0"), spread_out(transformer_model(kind))
    data = list(token_batches(4, padded=True))
    one, other = (train_epoch(model, data, kind, seed=1) for model in (here, there))
    assert torch.equal(one.losses, other.losses)


def spread_out(model):
    layers = len(list(model))
    return set_device(model, [f"sim:{i * COUNT // layers}" for i in range(layers)])


def test_backward_stays_on_the_worker():
    model, names = set_device(dense_model(3), ["sim:0"] * 3), set()
    for layer in model:
        weight = next(layer.parameters())
        weight.register_hook(lambda gradient: names.add(threading.current_thread().name))
    train_epoch(model, made_batches(6), "al_pipeline", 3)
    assert names == {"alkit-worker_0", "alkit-worker_1", "alkit-worker_2"}


def test_to_moves_a_model_as_set_device_does():
    here, there = dense_model(3), dense_model(3).to("sim:0")
    there[1].to("cpu")
    for model in (here, there):
        train_epoch(model, made_batches(3), "al_pipeline", 2)
    assert unlike(state(here), state(there)) == []
    x = made_batches(1)[0][0]
    assert torch.equal(here.predict(x), there.predict(x).cpu())


def test_devices_are_not_mixed_unseen():
    model = set_device(dense_model(2), ["sim:0", "sim:0"])
    with pytest.raises(RuntimeError, match="on the same device"):
        model[1](made_batches(1)[0][0], made_batches(1)[0][1])
