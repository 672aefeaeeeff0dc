"""fit: the bits of a plain loop, the best epoch, patience, and losses that are no numbers."""

from functools import partial

import pytest
from torch.optim.lr_scheduler import ExponentialLR

from alkit import BPModel, evaluate, fit, patience, train_epoch
from alkit.engine import trainer
from alkit.engine.evaluate import Judged
from alkit.engine.losses import check_finite
from tests.helpers import dense_model, differences, full_state, made_batches, state_of
from tests.make import MODELS, RATE, toy


def fitted(model, data=None, epochs=1, **options):
    return fit(model, data or toy(), epochs=epochs, **{"progress": False} | options)


@pytest.mark.parametrize("mode", MODELS)
@pytest.mark.parametrize("halving", [False, True])
def test_the_same_bits_as_a_plain_loop(mode, halving):
    data, model, twin = toy(), MODELS[mode](), MODELS[mode]()
    own = {"seed": 3} if halving else {}  # seeds are alike by default, too
    scheduler = partial(ExponentialLR, gamma=0.5) if halving else None
    options = {"batch_size": 6, "workers": 2, "scheduler": scheduler} | own
    result = fitted(model, data, 5, method=mode, **options)
    losses, accuracies, states = _plain_loop(twin, data, halving, **own)
    assert result.history.loss.tolist() == pytest.approx(losses)
    assert result.history.val_acc.tolist() == accuracies
    assert len(set(accuracies)) > 1
    best = accuracies.index(max(accuracies))
    assert result.best_epoch == best + 1
    weights = dict(model.state_dict())
    assert not differences(weights, {name: states[best][name] for name in weights})
    last = {name: value for name, value in full_state(model).items() if name not in weights}
    assert last
    assert not differences(last, {name: states[-1][name] for name in last})


def _plain_loop(model, data, halving, **own):
    """Train five epochs without fit; return losses, accuracies and full states of each."""
    mode, losses, accuracies, states = "bp" if isinstance(model, BPModel) else "al", [], [], []
    for epoch in range(5):
        for optimizer in model.named_optimizers().values():
            optimizer.param_groups[0]["lr"] = RATE * (0.5**epoch if halving else 1.0)
        batches = data.train.batches(6, epoch=epoch, **own)
        losses.append(train_epoch(model, batches, mode, **own).losses.mean().item())
        accuracies.append(evaluate(model, data.validation).mean().item())
        states.append(state_of(model))
    return losses, accuracies, states


def test_patience(monkeypatch):
    accuracies, data = iter([0.5, 0.6, 0.6, 0.55, 0.7, 0.9]), toy()
    real = trainer.judge

    def made_up(model, part, **options):
        if part is data.test:
            return real(model, part, **options)
        return Judged(values={"accuracy": next(accuracies)})

    monkeypatch.setattr(trainer, "judge", made_up)
    result = fitted(dense_model(1), data, 6, callbacks=[patience(2)])
    assert result.history.val_acc.tolist() == pytest.approx([0.5, 0.6, 0.6, 0.55])
    assert result.best_epoch == 2  # the first of the equal ones
    assert result.stopped_early
    monkeypatch.undo()
    assert not fitted(dense_model(1), data, 2, callbacks=[patience(2)]).stopped_early


@pytest.mark.parametrize("mode", ["al", "al_m", "al_fm", "al_pipeline"])
def test_a_loss_that_is_not_finite_names_batch_and_layer(mode):
    model, calls = dense_model(3), iter(range(1, 100))
    broken = model[1].enc.b[1]
    broken.register_forward_hook(lambda m, i, o: o * float("nan") if next(calls) == 4 else o)
    with pytest.raises(FloatingPointError, match=r"nan at batch 3 of the epoch.* \[1, 0\]"):
        check_finite(train_epoch(model, made_batches(6), mode).losses)
