"""fit and evaluate: the same numbers as a plain loop, the best epoch, and what the table says."""

from functools import partial

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR

from alkit import BPModel, best, evaluate, fit, patience, train_epoch
from alkit.al import train
from alkit.engine import loop, run, trainer
from alkit.engine.evaluate import Judged
from tests.helpers import Clock, dense_model, differences, full_state, state_of
from tests.make import MODELS, RATE, Spy, bp_model, spied, toy


def fitted(model, data=None, epochs=1, **options):
    return fit(model, data or toy(), epochs=epochs, **{"progress": False} | options)


@pytest.mark.parametrize("mode", MODELS)
@pytest.mark.parametrize("halving", [False, True])
def test_the_same_bits_as_a_plain_loop(mode, halving):
    data, model, twin = toy(), MODELS[mode](), MODELS[mode]()
    options = {"batch_size": 6, "seed": 3, "workers": 2}
    options["scheduler"] = partial(ExponentialLR, gamma=0.5) if halving else None
    result = fitted(model, data, 5, method=mode, **options)
    losses, accuracies, states = _plain_loop(twin, data, halving)
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


def _plain_loop(model, data, halving):
    """Train five epochs without fit; return losses, accuracies and full states of each."""
    mode, losses, accuracies, states = "bp" if isinstance(model, BPModel) else "al", [], [], []
    for epoch in range(5):
        for optimizer in model.named_optimizers().values():
            optimizer.param_groups[0]["lr"] = RATE * (0.5**epoch if halving else 1.0)
        batches = data.train.batches(6, seed=3, epoch=epoch)
        losses.append(train_epoch(model, batches, mode, seed=3).losses.mean().item())
        accuracies.append(evaluate(model, data.validation).mean().item())
        states.append(state_of(model))
    return losses, accuracies, states


def test_columns():
    data, model, twin = toy(), dense_model(2), dense_model(2)
    for each in (model, twin):
        each.set_lr("ae", 5e-2)
    table = fitted(
        model, data, 2, batch_size=6, scheduler=partial(ExponentialLR, gamma=0.55)
    ).history
    first, last = ["epoch", "lr", "loss", "samples"], ["data_s", "train_s", "eval_s", "step_s"]
    layers = ["associated_1", "autoencoder_1", "associated_2", "autoencoder_2"]
    assert table.columns.tolist() == [*first, *layers, "val_acc", "val_loss", *last]
    assert table.epoch.tolist() == [1, 2]
    assert table.lr.tolist() == pytest.approx([1e-2, 0.55e-2])
    assert table.loss.tolist() == pytest.approx(table[layers].mean(axis=1).tolist())
    losses = train_epoch(twin, data.train.batches(6), "al").losses.mean(0)
    assert table.loc[0, layers].tolist() == pytest.approx(losses.flatten().tolist())
    backprop = fitted(bp_model(), method="bp").history
    assert backprop.columns.tolist() == [*first, "val_acc", "val_loss", *last]


def test_the_test_part_is_looked_at_once_with_the_best_weights():
    data, model = toy(), dense_model(2)
    test = Spy(data.test)
    result = fitted(model, spied(data, test=test), 5, batch_size=6)
    assert len(test.asked) == 1
    assert result.best_epoch < 5, "a case in which the last epoch is not the best"
    assert torch.equal(result.test_correct, evaluate(model, data.test))
    assert result.test_acc == result.test_correct.mean().item()


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


def test_callbacks_add_columns_and_end_a_run():
    seen = []

    def look(row, model):
        seen.append((row["epoch"], float(model.predict(toy().test.x[:1]).sum())))
        return {"twice": 2 * row["epoch"]}

    result = fitted(dense_model(1), epochs=5, callbacks=[look, lambda row, _: row["twice"] == 6])
    assert result.history.twice.tolist() == [2, 4, 6]
    assert result.stopped_early
    assert len({scores for _, scores in seen}) == 3


def test_another_column_chooses_the_epoch():
    worse = iter([3.0, 1.0, 2.0])
    own = [lambda *_: {"own_loss": next(worse)}, best("own_loss")]
    model, kept = dense_model(1), []
    own.append(lambda _, model: kept.append({n: t.clone() for n, t in model.state_dict().items()}))
    assert fitted(model, epochs=3, callbacks=own).best_epoch == 2
    assert not differences(dict(model.state_dict()), kept[1])


def test_times_are_apart(monkeypatch):
    """On a clock that only this test moves: for a batch, for a step and for an evaluation."""
    clock, data, model = Clock(), toy(), dense_model(1)
    for module in (run, loop, train):
        monkeypatch.setattr(module, "time", clock)
    slow = spied(data, Spy(data.train, wait=lambda: clock.sleep(0.5)))
    model[0].enc.f.register_forward_hook(lambda f, *_: clock.sleep(2.0 if f.training else 64.0))
    table = fitted(model, slow, 2, batch_size=6).history
    assert table.data_s.tolist() == [10 * 0.5] * 2
    assert table.train_s.tolist() == [10 * 2.0] * 2
    assert table.eval_s.tolist() == [64.0] * 2
    assert table.step_s.tolist() == [2.0 + 0.5] * 2


@pytest.mark.parametrize("mode", ["al", "bp"])
def test_the_bar_shows_losses_and_accuracy(monkeypatch, mode):
    shown = []
    monkeypatch.setattr(loop.tqdm, "set_postfix", lambda self, **values: shown.append(values))
    result = fitted(MODELS[mode](), epochs=2, method=mode, progress=True)
    assert [set(values) for values in shown] == [{"loss", "val_acc", "val_loss"}] * 2
    assert shown[-1]["val_acc"] == f"{result.history.val_acc.iloc[-1]:.3f}"
