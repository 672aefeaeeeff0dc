"""Elastic training on a simulated accelerator: the bits of the CPU, with all four switches on."""

import pytest
import torch

import alkit
from alkit.data.parts import Pairs
from alkit.engine import checkpoint
from tests.sim.device import start
from tests.unit.elastic.helpers import SETTINGS, images, make_bert, make_vit, texts, train

COUNT = start()
if COUNT < 2:
    pytest.skip("no C++ compiler: the simulated device has no generators", allow_module_level=True)
LAST = f"sim:{COUNT - 1}"
TASKS = {"vit": (make_vit, images), "bert": (make_bert, texts)}
PARTS = {"validation": slice(0, 8), "test": slice(8, 16)}


def trained(task, device, **changes):
    """Train with noise and features stored; layers frozen are 0, 2, 3 and 3."""
    make, data = TASKS[task]
    network, whole = make(0.3), data()
    parts = {name: _part(whole, rows) for name, rows in PARTS.items()}
    freezing = {"freeze": lambda moment: min(3, 2 * moment.evaluation)}
    options = freezing | {"settings": SETTINGS, "workers": 2} | changes
    record = train(network, whole, device=device, **parts, **options)
    return network, record


def _part(data, rows):
    x = data.x[rows] if isinstance(data.x, torch.Tensor) else tuple(each[rows] for each in data.x)
    return Pairs(x, data.y[rows])


def same(one, other, exact):
    if exact:
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=1e-6, atol=1e-9)  # attention has another kernel


@pytest.mark.parametrize("task", TASKS)
def test_a_device_ends_as_the_cpu(task):
    (_, here), (network, there) = (trained(task, at) for at in (None, LAST))
    assert same(here.losses, there.losses, task == "bert")
    for name, tensor in here.state.items():
        assert same(tensor, there.state[name], task == "bert"), name
    assert torch.equal(here.test_correct, there.test_correct)
    assert next(network.parameters()).device == torch.device(LAST)
    counted = ["frozen", "stages", "cached", "misses", "advanced", "hits", "val_acc"]
    assert here.history[counted].equals(there.history[counted])
    assert there.history[["misses", "advanced", "hits"]].sum().tolist() == [24, 24, 24]


@pytest.mark.parametrize(("first", "then"), [("sim:0", None), (None, "sim:0"), ("sim:0", LAST)])
def test_a_checkpoint_goes_on_on_another_device(first, then, tmp_path, monkeypatch):
    (_, whole), path, own = trained("bert", None), tmp_path / "run.pt", checkpoint.save

    def save(*what):
        own(*what)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save", save)
        with pytest.raises(KeyboardInterrupt):
            trained("bert", first, checkpoint=path)
    _, again = trained("bert", then, checkpoint=path)
    assert torch.equal(whole.losses, again.losses)
    assert all(torch.equal(tensor, again.state[name]) for name, tensor in whole.state.items())


def test_the_one_face():
    data = images()
    options = {"method": "elastic", "epochs": 2, "batch_size": 8, "progress": False}
    losses = [
        alkit.fit(make_vit(), (data.x, data.y), device=at, cache=False, **options).losses
        for at in (None, "auto")
    ]
    assert torch.allclose(*losses, rtol=1e-6)
    with pytest.raises(ValueError, match="2 devices, and a network is on one"):
        alkit.fit(make_vit(), (data.x, data.y), device=["sim:0", LAST], **options)
