"""Split learning with halves on simulated devices: the wire has host memory, and the bits agree."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import alkit
from alkit.data import tree
from alkit.split import program
from alkit.split.config import Config
from alkit.split.halves import Head, Tail
from tests.sim.device import operators, start
from tests.unit.split.helpers import same_bits, samples, trained, units
from tests.unit.split.test_program import free_port

COUNT = start()
if COUNT < 2:
    pytest.skip("no C++ compiler: the simulated device has no generators", allow_module_level=True)
LAST = f"sim:{COUNT - 1}"
OWN = {"sizes": (20, 14), "norm": "batch", "dropout": 0.4, "batch": 7}
METHODS = {
    "fed": {"cut": 4},
    "split": {"cut": 2},
    "splitfed2": {"cut": 2},
    "pipelearn": {"cut": (1, 3), "micro": 2},
}
PROGRAM = {"data": "digits", "data_size": 24, "test_size": 12, "batch": 8}
PROGRAM |= {"model": "VGG5", "cut": 1, "micro": 2, "validate": True}


@pytest.mark.parametrize("device", ["sim:0", ["sim:0", LAST], ["cpu", "sim"]], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_on_a_device_ends_as_on_the_cpu(method, device):
    options = OWN | METHODS[method] | {"method": method, "epochs": 1}
    here, before = trained(**options), operators.total()
    there = trained(device=device, **options)
    assert operators.total() > before or (method == "fed" and device == ["cpu", "sim"])
    assert same_bits(here, there)
    assert {t.device.type for t in there.state.values()} == {"cpu"}
    assert there.sent_bytes == pytest.approx(here.sent_bytes, rel=1e-3)  # times are written out


def test_units_and_samples_that_are_there_already():
    parts = [samples(14, at) for at in range(2)]
    held = [tuple(each.to("sim:0") for each in part) for part in parts]
    options = {"cut": 2, "batch": 7, "epochs": 1, "progress": False}
    here = alkit.split.train(units(), parts, **options)
    there = alkit.split.train([unit.to("sim:0") for unit in units()], held, **options)
    assert same_bits(here, there)


def test_halves_take_and_give_host_memory():
    own = [unit.to("sim:0") for unit in units()]
    head, tail, (x, y) = Head(own[:2]), Tail(own[2:], first=2), samples(6)
    out = head.forward(x, 0, 0)
    made = tail.forward_backward(out, y, 1.0, 0, 0)
    head.backward(made.gradient, 0)
    head.update()
    given = out, made.gradient, head.state(), tail.state(), head.optimizer_state()
    assert {tensor.device.type for tensor in tree.tensors(given)} == {"cpu"}
    assert len(list(tree.tensors(given[-1]))) == 4  # momenta


def test_over_grpc_with_a_checkpoint_that_goes_on_on_the_cpu(tmp_path, monkeypatch):
    from alkit.split.server import Server

    options = OWN | {"cut": 2, "method": "splitfed", "epochs": 3, "device": LAST}
    whole, path, own = trained(**options), tmp_path / "run.pt", Server._save

    async def save(run):
        await own(run)
        if run.round == 1:
            raise RuntimeError("the end of the server")

    with monkeypatch.context() as patched:
        patched.setattr(Server, "_save", save)
        with pytest.raises(RuntimeError, match="the end of the server"):
            trained(transport="grpc", path=path, **options)
    # head optimisers are the devices' own, and new ones begin afresh
    again = trained(path=path, **options | {"device": None})
    assert len(again.rounds) == 3
    assert again.rounds[0].losses == whole.rounds[0].losses


@pytest.mark.parametrize("method", ["split", "fed", "splitfed"])
def test_the_one_face(method):
    x, y = samples(40)
    parts = (x[:24], y[:24]), (x[24:32], y[24:32]), (x[32:], y[32:])
    options = {"method": method, "epochs": 1, "batch_size": 8, "progress": False, "lr": 0.1}
    here, there = (
        alkit.fit(units("batch"), *parts, device=device, **options) for device in (None, "auto")
    )
    assert torch.equal(here.losses, there.losses)
    assert here.history.val_acc.tolist() == there.history.val_acc.tolist()
    assert torch.equal(here.test_correct, there.test_correct)
    assert next(there.model.parameters()).device.type == "sim"
    with pytest.raises(ValueError, match="3 devices for heads and tail"):
        alkit.fit(units(), *parts, device=["sim:0", LAST, "cpu"], **options)


def test_programs_train_where_each_party_says(tmp_path):
    states = []
    for on in ((None, None), ("sim:0", None), (None, LAST)):
        before = operators.total()
        config = Config(**PROGRAM, port=free_port(), folder=str(tmp_path / f"{on}"))
        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(program.serve, config, on=on[0], progress=False)
            while not served.done() and _silent(config.port):  # here both draw from one generator
                time.sleep(0.1)
            program.device(config, 0, on=on[1], progress=False)
            served.result()
        states.append(load_file(Path(config.folder) / "model.safetensors"))
        assert (operators.total() > before) == any(on)
    for name, tensor in states[0].items():
        assert all(torch.equal(tensor, other[name]) for other in states[1:])


def _silent(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
