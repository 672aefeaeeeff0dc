"""Split learning with halves on simulated devices: links have host memory, and the bits agree."""

import pytest
import torch

import alkit
from alkit.base import tree
from alkit.split.half import Half, factory_of
from alkit.split.settings import Settings
from tests.sim.device import operators, start
from tests.unit.split.helpers import pairs_of, same_bits, samples, trained, units

COUNT = start()
if COUNT < 2:
    pytest.skip("no C++ compiler: the simulated device has no generators", allow_module_level=True)
LAST = f"sim:{COUNT - 1}"
OWN = {"sizes": (20, 14), "norm": "batch", "dropout": 0.4, "batch": 7}
METHODS = {
    "fed": {"cut": 4},
    "splitfed": {"cut": 2},
    "pipelearn": {"cut": 1, "micro": 2},
}


@pytest.mark.parametrize("device", ["sim:0", ["sim:0", LAST], ["cpu", "sim"]], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_on_a_device_ends_as_on_the_cpu(method, device):
    options = OWN | METHODS[method] | {"method": method, "epochs": 1}
    here, before = trained(**options), operators.total()
    there = trained(device=device, **options)
    assert operators.total() > before or (method == "fed" and device == ["cpu", "sim"])
    assert same_bits(here, there)
    assert {t.device.type for t in there.state.values()} == {"cpu"}


def test_units_and_samples_that_are_there_already():
    parts = [samples(14, at) for at in range(2)]
    held = [tuple(each.to("sim:0") for each in part) for part in parts]
    options = {"cut": 2, "batch": 7, "epochs": 1}
    here = pairs_of(units(), parts, **options)
    there = pairs_of([unit.to("sim:0") for unit in units()], held, **options)
    assert same_bits(here, there)


def test_halves_take_and_give_host_memory():
    own = [unit.to("sim:0") for unit in units()]
    make = factory_of(Settings())
    head, tail = Half(own[:2], make), Half(own[2:], make, first=2, stage=1, is_last=True)
    part = head.forward([(*samples(6), 1.0)], 0, 0)
    tail.forward(part, 0, 0)
    gradient = tail.backward(None, 0, 0)
    head.backward(gradient, 0, 0)
    head.update(None, 0, 0)
    given = part, gradient, head.state(), tail.state()
    assert {tensor.device.type for tensor in tree.tensors(given)} == {"cpu"}


@pytest.mark.parametrize("method", ["fed", "splitfed"])
def test_the_one_face(method, tmp_path):
    x, y = samples(40)
    parts = (x[:24], y[:24]), (x[24:32], y[24:32]), (x[32:], y[32:])
    options = {"method": method, "batch_size": 8, "progress": False, "lr": 0.1}
    here, there = (
        alkit.fit(units("batch"), *parts, device=device, epochs=2, **options)
        for device in (None, "auto")
    )
    assert torch.equal(here.losses, there.losses)
    assert here.history.val_acc.tolist() == there.history.val_acc.tolist()
    assert torch.equal(here.test_correct, there.test_correct)
    assert next(there.model.parameters()).device.type == "sim"
    # a run that began there goes on here
    alkit.fit(units("batch"), *parts, device="auto", checkpoint=tmp_path / "run", **options)
    again = alkit.fit(units("batch"), *parts, checkpoint=tmp_path / "run", epochs=2, **options)
    assert torch.equal(again.losses, here.losses)
    with pytest.raises(ValueError, match="3 devices for heads and tail"):
        alkit.fit(units(), *parts, device=["sim:0", LAST, "cpu"], **options)
