"""One word for the device, for every method that has one, in the one face."""

import pytest
import torch
from torch import nn

import alkit
from alkit import dtp
from alkit.al.rules import RULES
from alkit.engine import checkpoint
from tests.sim.device import start
from tests.unit.dtp.helpers import made_set

COUNT = start()
if COUNT < 2:
    pytest.skip("no C++ compiler: the simulated device has no generators", allow_module_level=True)
LAST = f"sim:{COUNT - 1}"
x = torch.randn(48, 6, generator=torch.Generator().manual_seed(1))
y = torch.randint(3, (48,), generator=torch.Generator().manual_seed(2))
METHODS = ("bp", "al", "al_pipeline", "local", "ddg", "fr", "pipedream", "1f1b")
DEVICES = ("sim:0", ["sim:0", LAST], "auto")


def blocks():
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3)) for _ in range(3)]
    return [*hidden, nn.Linear(6, 3)]


def fitted(method, device, path=None, **more):
    micro = {"micro": 2} if method == "1f1b" else {}
    own = {"num_classes": 3} if method in ("al", "al_pipeline") else {}
    model = blocks() if method not in ("al", "al_pipeline") else blocks()[:3]
    parts = (x[:32], y[:32]), (x[32:40], y[32:40]), (x[40:], y[40:])
    options = micro | own | more | {"epochs": 2, "batch_size": 8, "progress": False, "lr": 0.01}
    return alkit.fit(model, *parts, method=method, device=device, checkpoint=path, **options)


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_on_a_device_ends_as_on_the_cpu(method, device):
    here, there = fitted(method, None), fitted(method, device)
    assert torch.allclose(here.losses, there.losses, rtol=1e-6)
    assert here.history.val_acc.tolist() == there.history.val_acc.tolist()
    assert torch.equal(here.test_correct, there.test_correct)
    assert next(there.model.parameters()).device.type == "sim"


@pytest.mark.parametrize("rule", [*RULES, "fixed_codes"])
def test_a_local_rule_on_two_devices(rule):
    """BatchNorm and dropout before heads of all kinds; scpl's losses are sums of many terms."""
    options = {"rule": rule}
    here, there = (fitted("local_pipeline", each, **options) for each in (None, ["sim:0", LAST]))
    assert torch.allclose(here.losses, there.losses, rtol=1e-5)
    assert here.history.val_acc.tolist() == there.history.val_acc.tolist()


@pytest.mark.parametrize("method", ["bp", "al_pipeline", "pipedream"])
@pytest.mark.parametrize(("first", "then"), [("sim:0", None), (None, "sim:0"), ("sim:0", LAST)])
def test_a_checkpoint_goes_on_on_another_device(method, first, then, tmp_path, monkeypatch):
    whole, path, own, saves = fitted(method, None), tmp_path / "run.pt", checkpoint.save, []

    def save(*what):
        own(*what)
        saves.append(what)
        if len(saves) == 2:  # before the first epoch, and after it
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save", save)
    with pytest.raises(KeyboardInterrupt):
        fitted(method, first, path)
    again = fitted(method, then, path)
    assert again.history.loss.tolist() == pytest.approx(whole.history.loss.tolist(), rel=1e-6)
    assert torch.equal(again.test_correct, whole.test_correct)


@pytest.mark.parametrize("method", ["dtp", "tp"])
def test_target_propagation(method):
    options = {"method": method, "iterations": 2, "batch_size": 24, "lr": 1e-3}
    records = []
    for device in (None, LAST):
        net = dtp.network("tiny")
        records.append(alkit.fit(net, made_set(), device=device, progress=False, **options))
    here, there = records
    assert torch.allclose(here.losses, there.losses, rtol=1e-5)
    assert torch.equal(here.test_correct, there.test_correct)


def test_what_cannot_be_had_is_said():
    with pytest.raises(ValueError, match="unknown device 'cuda': this machine has cpu, sim:0"):
        fitted("bp", "cuda")
    with pytest.raises(ValueError, match="9 devices for 4 layers: give 1 to 4"):
        fitted("bp", ["sim:0"] * 9)
    with pytest.raises(ValueError, match="unknown device 'sim:9'"):
        alkit.fit(blocks(), (x, y), method="pipedream", device="sim:9", ranks=2)
    with pytest.raises(ValueError, match="2 devices, and a network is on one"):
        alkit.fit(dtp.network("tiny"), made_set(), device=["sim:0", LAST], progress=False)


@pytest.mark.parametrize("method", [*METHODS, "splitfed", "elastic", "dtp"])
def test_a_network_and_samples_that_are_there_already(method):
    """`net.cuda()`, and no word of a device."""

    def fit(at, **options):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
        options |= {"method": method, "batch_size": 8, "progress": False, "lr": 0.01}
        return alkit.fit(net.to(at), (x.to(at), y.to(at)), (x, y), **options)

    named, found = fit("cpu", device="sim:0"), fit("sim:0")
    assert torch.allclose(named.losses, found.losses, rtol=1e-5)
    assert {str(p.device) for p in found.model.parameters()} == {"sim:0"}


CLASSES = torch.ones(3)


@pytest.mark.parametrize("given", ["cpu", "sim:0"])
def test_weights_of_classes_go_where_the_network_goes(given, tmp_path):
    x, y = torch.randn(64, 8), torch.arange(64) % 3
    loss = nn.CrossEntropyLoss(CLASSES.to(given))
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    options = {"method": "bp", "progress": False, "loss": loss}
    alkit.fit(net, (x, y), device="sim:0", checkpoint=tmp_path / "run", **options)
    many = (x[:, :3] > 0).float()
    rows = nn.BCEWithLogitsLoss(pos_weight=CLASSES.to("sim:0"))
    record = alkit.fit(net, (x, many), (x, many), **options | {"loss": rows})
    assert record.history.val_loss.notna().all()


@pytest.mark.parametrize("method", ["bp", "local", "1f1b", "elastic", "dtp"])
def test_a_loss_may_be_on_the_device_before_the_network(method):
    """A run before this one took its classes' weights there."""
    x, y = torch.randn(64, 8), torch.arange(64) % 3
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    options = {"method": method, "progress": False, "lr": 0.01}
    loss = nn.CrossEntropyLoss(CLASSES.to("sim:0"))
    record = alkit.fit(net, (x, y), (x, y), device="sim:0", loss=loss, **options)
    assert record.losses.isfinite().all()
