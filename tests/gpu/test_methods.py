"""Every method on a real accelerator: as on the CPU, and what users do there."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import alkit
from alkit.engine import checkpoint
from tests.conformance import situations
from tests.conformance.families import FAMILIES, C, loader, rows
from tests.conformance.situations import SITUATIONS, cell
from tests.gpu import ONE, SIM, imported, need_one

pytestmark = pytest.mark.gpu
need_one()
SAID = situations.committed()
MICRO = {"1f1b": 2, "2bw": 4, "dualpipev": 8, "gpipe": 4, "zero_bubble": 4}
DTP = ("dtp", "vanilla_dtp", "tp")  # noise in every step: a device's own
HELD = [each.method for each in FAMILIES]


def net(method, dropout=0.0, norm=True):
    torch.manual_seed(0)
    first = [nn.BatchNorm1d(8)] if norm and method not in DTP else []  # it has no inverse there
    noise = [nn.Dropout(dropout)] if dropout else []
    hidden = [nn.Sequential(nn.Linear(i, 16), nn.Tanh(), *noise) for i in (8, 16, 16, 16)]
    return nn.Sequential(nn.Sequential(*first, *hidden[0]), *hidden[1:], nn.Linear(16, C))


def fitted(method, model=None, data=None, **options):
    own = {"micro": MICRO[method]} if method in MICRO else {}
    data = rows(120) if data is None else data
    own |= {"batch_size": 32, "epochs": 2, "progress": False, "lr": 0.01}
    own |= {"callbacks": [imported]} if "ranks" in options else {}
    return alkit.fit(model or net(method), data, data, data, method=method, **own | options)


def near(here, there, rtol=2e-3):
    assert torch.allclose(here.losses.cpu(), there.losses.cpu(), rtol=rtol, atol=1e-4)
    loss = [each.history.loss.tolist() for each in (here, there)]
    assert loss[0] == pytest.approx(loss[1], rel=rtol)


def at(record):
    return {str(p.device) for p in record.model.parameters()}


@pytest.mark.skipif(SIM, reason="minutes")
@pytest.mark.parametrize("method", HELD)
@pytest.mark.parametrize("name", SITUATIONS)
def test_a_situation_is_what_the_page_says(name, method):
    assert situations.kind(cell(SITUATIONS[name], method, device=ONE)) == SAID[name, method]


@pytest.mark.parametrize("method", alkit.METHODS)
def test_a_method_ends_as_on_the_cpu(method):
    here, there = fitted(method), fitted(method, device=ONE)
    assert at(there) == {ONE}
    assert torch.isfinite(there.losses).all()
    near(here, there, 0.1 if method in DTP else 2e-3)
    x = rows(20)[0]
    scores = there.model.eval()(x.to(ONE))
    assert scores.shape == (20, C)


@pytest.mark.parametrize("method", alkit.METHODS)
def test_a_network_and_samples_that_are_there_already(method):
    """`net.cuda()`, and nothing said to `fit`."""
    x, y = rows(120)
    named = fitted(method, device=ONE)
    for data in (rows(120), (x.to(ONE), y.to(ONE))):
        record = fitted(method, net(method).to(ONE), data)
        assert at(record) == {ONE}
        near(named, record, 1e-5)


@pytest.mark.parametrize("method", HELD)
def test_a_loader_that_pins_with_workers(method):
    options = {"shuffle": False, "pin_memory": True, "num_workers": 2}
    plain, pinned = loader(91, shuffle=False), loader(91, **options)
    one, other = (
        fitted(method, None, each, batch_size=None, device=ONE) for each in (plain, pinned)
    )
    near(one, other, 1e-5)


@pytest.mark.parametrize("method", HELD)
@pytest.mark.parametrize(("first", "then"), [(ONE, None), (None, ONE), (ONE, ONE)])
def test_a_run_goes_on_on_another_device(method, first, then, tmp_path, monkeypatch):
    whole, path, own, saves = fitted(method), tmp_path / "run.pt", checkpoint.save, []

    def save(*what):
        own(*what)
        saves.append(what)
        if len(saves) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save", save)
        with pytest.raises(KeyboardInterrupt):
            fitted(method, device=first, checkpoint=path)
    again = fitted(method, device=then, checkpoint=path)
    rtol = 0.1 if method in DTP else 2e-3
    assert again.history.loss.tolist() == pytest.approx(whole.history.loss.tolist(), rel=rtol)


IN_TURN = {"al_pipeline": "al", "local_pipeline": "local"}


@pytest.mark.parametrize("method", [*IN_TURN, "ddg", "pipedream", "1f1b"])
def test_executors_agree_with_dropout(method):
    """One after the other, threads, ranks that share the device: the same bits."""
    own = {"device": ONE} | ({} if method in IN_TURN else {"cuts": [2]})
    one = fitted(IN_TURN.get(method, method), net(method, 0.3), workers=1, **own)
    threads = fitted(method, net(method, 0.3), workers=2, **own)
    assert torch.equal(one.losses, threads.losses)
    ranks = fitted(method, net(method, 0.3), ranks=2, **own)
    assert torch.equal(one.losses, ranks.losses)


@pytest.mark.parametrize("method", ["elastic", "dtp"])
def test_ranks_that_share_the_device(method):
    own = {"device": ONE}
    one, ranks = (
        fitted(method, net(method, norm=False), **own | more) for more in ({}, {"ranks": 2})
    )
    near(one, ranks)


@pytest.mark.parametrize("method", ["bp", "al_pipeline", "local_pipeline", "pipedream", "1f1b"])
def test_layers_on_the_host_and_on_the_device(method):
    options = {} if method in ("bp", "al_pipeline", "local_pipeline") else {"cuts": [2]}
    here, there = fitted(method, **options), fitted(method, device=["cpu", ONE], **options)
    near(here, there)
    assert at(there) == {"cpu", ONE}


WIDE = (*DTP, "elastic", "central", "fed", "splitfed", "pipelearn")


@pytest.mark.parametrize("method", [each for each in alkit.METHODS if each not in WIDE])
def test_narrow_precision(method):
    with torch.autocast(torch.device(ONE).type, torch.bfloat16):
        record = fitted(method, device=ONE, epochs=3)
    assert record.history.loss.iloc[-1] < record.history.loss.iloc[0]


@pytest.mark.parametrize("method", ["gpipe", "1f1b"])
def test_recomputation(method):
    plain = fitted(method, net(method, 0.3), device=ONE, cuts=[2])
    again = fitted(method, net(method, 0.3), device=ONE, cuts=[2], recompute=True)
    assert torch.equal(plain.losses, again.losses)


def test_cuts_by_measured_cost():
    record = fitted("1f1b", device=ONE, cuts="balanced", workers=2)
    assert at(record) == {ONE}


def test_weights_are_saved_for_machines_without_one(tmp_path):
    record = fitted("al_pipeline", device=ONE)
    alkit.save(record, tmp_path / "own.pt")
    x = rows(20)[0]
    here = alkit.load(tmp_path / "own.pt", net("al_pipeline")).eval()
    assert torch.allclose(here(x), record.model.eval()(x.to(ONE)).cpu(), atol=1e-4)


@pytest.mark.parametrize("method", ["bp", "local", "1f1b", "elastic", "dtp"])
@pytest.mark.parametrize("given", ["cpu", ONE])
def test_weights_of_classes_go_where_the_network_goes(given, method):
    """A loss may be on the device before the network: a run before this one took it there."""
    loss = nn.CrossEntropyLoss(torch.ones(C, device=given))
    assert fitted(method, device=ONE, loss=loss).losses.isfinite().all()


@pytest.mark.parametrize("method", HELD)
def test_a_shuffled_loader_follows_the_seed(method):
    data = DataLoader(TensorDataset(*rows(91)), 32, shuffle=True)
    one, other = (fitted(method, None, data, batch_size=None, device=ONE, seed=3) for _ in range(2))
    near(one, other, 1e-4)


def convolutions():
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()) for _ in range(24)]
    return nn.Sequential(nn.Conv2d(3, 16, 3), *hidden, nn.Flatten(), nn.Linear(16 * 36, 10))


@pytest.mark.parametrize("method", ["1f1b", "zero_bubble", "pipedream", "al_pipeline"])
def test_the_rounding_of_convolutions_is_no_difference(method, tmp_path):
    """To 1 in 2,048 by default: neither of half a batch, nor of saved weights on the CPU."""
    x, y = torch.randn(64, 3, 8, 8), torch.arange(64) % 10
    own = {"checkpoint": tmp_path / "run", "lr": 1e-4, "batch_size": 32, "progress": False}
    own |= {"micro": 4} if method in MICRO else {}
    for device in (ONE, None, ONE):
        epochs = 1 + len(list(tmp_path.glob("*.done")))
        record = alkit.fit(
            convolutions(), (x, y), (x, y), method=method, device=device, epochs=epochs, **own
        )
        (tmp_path / f"{epochs}.done").touch()
        assert torch.isfinite(record.losses).all()
