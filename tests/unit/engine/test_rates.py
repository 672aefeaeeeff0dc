"""Learning-rate schedules against the publication's numbers, on every optimiser."""

from contextlib import closing

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import alkit
from alkit.engine.rates import Rates, rates
from tests.helpers import dense_model
from tests.make import labelled, tanh_blocks


def test_both_optimisers_of_every_layer_keep_their_ratio_and_get_their_rates_back():
    model = dense_model(3)
    model.set_lr("ae", 4e-2)
    base = rates(model)
    assert list(base) == [f"{layer}.{side}.0" for layer in range(3) for side in ("enc", "ae")]

    def halfway():
        with closing(Rates(model, lambda each: LR["epoch"](each, gamma=0.55))) as own:
            own.end_epoch({})
            assert own.start_epoch() == pytest.approx(0.55e-2)
            assert rates(model) == pytest.approx({name: 0.55 * lr for name, lr in base.items()})
            raise KeyError("also after an error")

    with pytest.raises(KeyError, match="also after an error"):
        halfway()
    assert rates(model) == base


# ---- torch's own, in every method

METHODS = ("bp", "al", "al_pipeline", "pipedream", "fr", "1f1b", "gpipe", "elastic", "dtp")
LR = {"epoch": lr_scheduler.ExponentialLR, "batch": lr_scheduler.StepLR}
OPTIONS = {"epoch": {"gamma": 0.5}, "batch": {"step_size": 2, "gamma": 0.1}}


def fitted(method, every, made, **options):
    """Train on 20 samples in batches of 8, the last one smaller, and keep all rates."""
    kept = []

    def optimizer(parameters, lr):
        found, own = torch.optim.SGD(parameters, lr=lr), []
        kept.append(own)
        found.register_step_pre_hook(lambda made, *_: own.append(made.param_groups[0]["lr"]))
        return found

    scheduler = alkit.each_batch(made) if every == "batch" else made
    own = {"scheduler": scheduler, "optimizer": optimizer, "lr": 0.1, "batch_size": 8, "epochs": 3}
    network = nn.Sequential(*tanh_blocks())
    record = alkit.fit(network, labelled(20), method=method, progress=False, **own | options)
    return record, [own for own in kept if own]


@pytest.mark.parametrize("every", LR)
@pytest.mark.parametrize("method", METHODS)
def test_a_factory_of_torchs_schedulers_sets_the_rates_of_all_steps(method, every):
    record, kept = fitted(method, every, lambda own: LR[every](own, **OPTIONS[every]))
    by_step = [0.1, 0.1, 0.01, 0.01, 1e-3, 1e-3, 1e-4, 1e-4, 1e-5]
    expected = by_step if every == "batch" else [0.1] * 3 + [0.05] * 3 + [0.025] * 3
    assert kept
    for own in kept:
        assert own == pytest.approx(expected, rel=1e-9)
    assert record.history.lr.tolist() == pytest.approx(expected[::3])


@pytest.mark.parametrize("method", ["pipelearn", "splitfed", "fed"])
def test_split_learning_has_a_rate_a_round(method):
    _, kept = fitted(method, "epoch", lambda own: LR["epoch"](own, gamma=0.5))
    rounds = {rate for own in kept for rate in own}
    assert sorted(rounds) == pytest.approx([0.025, 0.05, 0.1])
    assert all(own == sorted(own, reverse=True) for own in kept)
    with pytest.raises(ValueError, match="all parties share rounds"):
        fitted(method, "batch", lambda own: LR["epoch"](own, gamma=0.5))


def one_cycle(own):
    return lr_scheduler.OneCycleLR(own, max_lr=0.3, total_steps=12)


@pytest.mark.parametrize("method", ["bp", "al_pipeline", "pipedream", "elastic", "dtp"])
def test_a_resumed_run_goes_on_with_its_rates(method, tmp_path):
    """Stopped after an epoch of four, by a checkpoint."""
    whole, kept = fitted(method, "batch", one_cycle, epochs=4)
    looks = iter(range(1, 100))

    def stop(scores, y):
        if next(looks) == 3:  # the first is before the first epoch
            raise KeyboardInterrupt
        return 0.0

    options = {"checkpoint": tmp_path / "run.pt", "metrics": {"stop": stop}, "epochs": 4}
    options["validation"] = torch.zeros(2, 6), torch.tensor([0, 1])
    with pytest.raises(KeyboardInterrupt):
        fitted(method, "batch", one_cycle, **options)
    _, rest = fitted(method, "batch", one_cycle, **options)
    assert [one[3:] for one in kept] == rest


def test_a_plateau_looks_at_the_epochs_loss():
    made = lr_scheduler.ReduceLROnPlateau
    record, _ = fitted("bp", "epoch", lambda own: made(own, patience=0, threshold=0.9), epochs=4)
    assert record.history.lr.tolist() == pytest.approx([0.1, 0.1, 0.01, 1e-3])


OF_ITS_OWN = lr_scheduler.ConstantLR(torch.optim.SGD([torch.zeros(1)], 0.1))
REFUSED = [
    ("cosine", "scheduler= is or makes 'cosine', and each optimiser"),
    (OF_ITS_OWN, "each optimiser has a scheduler of its own"),
    (lambda own: own, "makes SGD.*give what makes one"),
]


@pytest.mark.parametrize(("scheduler", "message"), REFUSED)
def test_what_is_no_scheduler_is_refused(scheduler, message):
    with pytest.raises(TypeError, match=message):
        fitted("bp", "epoch", scheduler)
