"""Accumulation, clipping, scaling: against plain torch; losses that are looked at late."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alkit
from alkit.engine import checkpoint
from alkit.engine.loss_log import LOOK_EVERY, LossLog
from alkit.engine.steps import Steps
from tests.helpers import dense_model, differences, made_batches, state_of

x = torch.randn(48, 6, generator=torch.Generator().manual_seed(1))
y = torch.randint(3, (48,), generator=torch.Generator().manual_seed(2))
PARTS = (x[:28], y[:28]), (x[28:40], y[28:40]), (x[40:], y[40:])  # seven batches of four


def blocks(dropout=0.0):
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(dropout)) for _ in range(3)]
    return [*hidden, nn.Linear(6, 3)]


def fitted(method, **options):
    options = {"batch_size": 4, "progress": False} | options
    return alkit.fit(made(method), *PARTS, method=method, **options)


def made(method):
    if method == "bp":
        return alkit.BPModel(blocks(), 0.05, optimizer=torch.optim.SGD)
    if method.startswith("al"):
        return alkit.to_al(blocks()[:3], 3, x[:2], lr=0.05, optimizer=torch.optim.SGD)
    return blocks()


def plain(steps, clip=None):
    """Train by hand on the same batches: groups of four at a time, the last one smaller."""
    from alkit.data.given import as_splits

    model = nn.Sequential(*blocks())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches = list(as_splits(*PARTS).train.batches(4, seed=0, epoch=0))
    for start in range(0, len(batches), steps):
        group = batches[start : start + steps]
        optimizer.zero_grad()
        sum(F.cross_entropy(model(a), b) for a, b in group).div(len(group)).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return list(model.parameters())


@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (3, None), (1, 0.1), (2, 0.05)])
def test_backprop_s_steps_are_those_of_a_plain_loop(accumulate, clip):
    found = fitted("bp", accumulate=accumulate, clip=clip).model
    for own, wanted in zip(found.parameters(), plain(accumulate, clip), strict=True):
        assert torch.allclose(own, wanted, atol=1e-6)


@pytest.mark.parametrize("options", [{"accumulate": 3}, {"clip": 0.01}, {"precision": "float16"}])
def test_al_s_modes_and_free_workers_step_alike(options):
    methods = {"al": {}, "al_m": {}, "al_fm": {}, "al_pipeline": {"workers": 2}}
    states = [state_of(fitted(m, **options, **own).model) for m, own in methods.items()]
    assert all(differences(states[0], other) == [] for other in states[1:])
    assert differences(states[0], state_of(fitted("al").model))


def test_layers_accumulate_the_mean_gradient():
    one, other = dense_model(1), dense_model(1)
    for model in (one, other):
        model.eval()  # without noise or batch statistics, two halves are the whole
    other[0].steps = Steps(accumulate=2)
    (a, b), (c, d) = made_batches(2)
    one[0](torch.cat([a, c]), torch.cat([b, d]))
    one[0].backward()
    for left, right in ((a, b), (c, d)):
        other[0](left, right)
        other[0].backward()
        before = [p.detach().clone() for p in other.parameters()]
        other[0].update()
        assert all(map(torch.equal, other.parameters(), before)) == (left is a)
    mine, theirs = ([p.grad for p in model.parameters()] for model in (one, other))
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_ranks_step_with_what_is_held_at_an_epoch_s_end_and_bring_it_back():
    options = {"accumulate": 3, "cuts": [1], "epochs": 2}
    here, model = fitted("al_pipeline", **options), made("al_pipeline")
    own = {"method": "al_pipeline", "batch_size": 4, "progress": False, "ranks": 2}
    there = alkit.fit(model, *PARTS, **own, **options)
    assert differences(state_of(here.model), state_of(model)) == []
    assert there.model is model
    assert there.history.val_acc.tolist() == here.history.val_acc.tolist()


def test_an_overflow_leaves_a_step_out_and_halves_the_scale():
    model = dense_model(1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    model[0].steps = Steps(scaler=scaler)
    model[0](*made_batches(1)[0])
    model[0].backward()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model[0].enc.f[0].weight.grad[0, 0] = torch.inf
    model[0].update()
    assert scaler.get_scale() == 2.0
    same = {n for n, p in model.named_parameters() if torch.equal(p, before[n])}
    assert {n for n in before if ".enc." in n} <= same


def test_an_interrupted_run_goes_on_at_its_scale(tmp_path, monkeypatch):
    options = {"precision": "float16", "epochs": 3, "seed": 1}
    whole, own, saves = fitted("al", **options), checkpoint.save, []

    def save(*what):
        own(*what)
        saves.append([each["scale"] for each in what[1]["scales"]])
        if len(saves) == 2:  # before the first epoch, and after it
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save", save)
    with pytest.raises(KeyboardInterrupt):
        fitted("al", **options, checkpoint=tmp_path / "run.pt")
    again = fitted("al", **options, checkpoint=tmp_path / "run.pt")
    assert again.history.loss.tolist() == whole.history.loss.tolist()
    assert max(saves[-1]) < 65536.0  # torch's first scale overflows here


@pytest.mark.parametrize("method", ["bp", "al", "al_pipeline", "ddg", "1f1b"])
def test_bfloat16_by_one_word(method):
    """What the caller's own autocast gives, and not float32's."""
    one = fitted(method, precision="bfloat16")
    model = made(method)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        other = alkit.fit(model, *PARTS, method=method, batch_size=4, progress=False)
    assert torch.equal(one.losses, other.losses)
    assert not torch.equal(one.losses, fitted(method).losses)
    assert all(p.dtype is torch.float32 for p in one.model.parameters())


@pytest.mark.parametrize(
    ("method", "options", "match"),
    [
        ("bp", {"precision": "half"}, "precision is 'half': give float32, bfloat16, float16"),
        ("bp", {"clip": 0}, "clip is 0: it must be finite and positive"),
        ("bp", {"accumulate": 0}, "accumulate"),
        ("ddg", {"accumulate": 2}, "give micro= of gpipe"),
        ("ddg", {"precision": "float16"}, "cross modules unscaled"),
        ("split", {"precision": "bfloat16"}, "one type, float32"),
        ("split", {"clip": 1.0}, "no side sees the norm of all gradients"),
        ("al_pipeline", {"precision": "float16", "ranks": 2}, "ranks keep no scales"),
        ("al_pipeline", {"precision": "float16", "executor": "ranks"}, "ranks keep no scales"),
    ],
)
def test_what_a_method_cannot_do_is_said(method, options, match):
    with pytest.raises(ValueError, match=match):
        fitted(method, **options)


class _Elsewhere(torch.Tensor):
    """A tensor that says it is on an accelerator."""

    @property
    def device(self):
        return torch.device("meta")

    def detach(self):
        return self


def test_an_accelerator_s_losses_are_fetched_many_at_once_and_name_their_batch():
    """Those on the CPU are looked at at once."""
    seen, here = (LossLog(lambda *what: FloatingPointError(what)) for _ in range(2))
    for batch in range(LOOK_EVERY - 1):
        row = torch.tensor([1.0, torch.nan if batch == 5 else 2.0])
        seen.note(row.as_subclass(_Elsewhere))
    assert (len(seen.seen), len(seen)) == (0, LOOK_EVERY - 1)
    with pytest.raises(FloatingPointError, match=r"\(5, 1, nan\)"):
        seen.note(torch.ones(2).as_subclass(_Elsewhere))
    here.note(torch.ones(1))
    with pytest.raises(FloatingPointError, match=r"\(1, 0, inf\)"):
        here.note(torch.tensor([torch.inf]))
