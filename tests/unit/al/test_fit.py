"""fit and evaluate: the same numbers as a plain loop, the best epoch, and what the table says."""

import sys
import types

import pytest
import torch
from torch import nn

from alkit import BPModel, evaluate, fit, to_al, train_epoch
from alkit.al import train
from alkit.al.train import full_state
from alkit.data.datasets import DataSet, Part, load
from alkit.engine import loop as fitting_module
from alkit.engine import trainer
from alkit.engine import watch as engine
from alkit.engine.evaluate import Judged
from alkit.engine.rates import rate_at, rates
from alkit.models.convnet import convnet
from tests.helpers import CLASSES, WIDTH, Clock, dense_model, differences, state_of

RATE = 3e-2


def al_model(seed=0):
    """Return two AL layers with dropout and batch norm, the same ones for the same seed."""
    model = dense_model(2, seed)
    model.set_lr(["enc", "ae"], RATE)
    return model


def bp_model(seed=0):
    """Return a BP model with dropout and batch norm, the same one for the same seed."""
    torch.manual_seed(seed)
    first = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
    return BPModel([first, nn.Dropout(0.3), nn.Linear(WIDTH, CLASSES)], lr=RATE)


def toy(samples=60, seed=0):
    """Return made-up numbers with noisy labels: accuracies go up and down between epochs."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for count in (samples, 20, 20):
        x = torch.randn(count, WIDTH, generator=generator)
        noisy = x[:, :CLASSES] + torch.randn(count, CLASSES, generator=generator)
        parts.append(Part(x, noisy.argmax(1), CLASSES))
    return DataSet("toy", *parts, CLASSES, tuple("abc"))


def interrupted():
    raise KeyboardInterrupt


class Spy:
    """A part that writes down how its batches are asked for; at (epoch, batch) it may fail."""

    def __init__(self, part, fail_at=None, wait=lambda: None, fail=interrupted):
        self.part, self.fail_at, self.wait, self.fail = part, fail_at, wait, fail
        self.asked = []

    def __len__(self):
        return len(self.part)

    def __getattr__(self, name):
        return getattr(self.part, name)

    def batches(self, batch_size, **options):
        self.asked.append(options)
        options.pop("augment", None)
        for at, batch in enumerate(self.part.batches(batch_size, **options)):
            if (options.get("epoch"), at) == self.fail_at:
                self.fail()
            self.wait()
            yield batch


def spied(data, train=None, test=None):
    """Return the data set with some of its parts replaced."""
    return DataSet("toy", train or data.train, data.validation, test or data.test, CLASSES, ())


MODELS = {"al": al_model, "al_pipeline": al_model, "bp": bp_model}


def test_fit_on_digits_keeps_the_best_epoch():
    data = load("digits", seed=0)
    sample = data.train.x[:2]
    model = to_al(convnet(widths=(8, 8)), data.num_classes, sample, code_dim=16, lr=3e-3)
    result = fit(
        model, data, epochs=6, batch_size=32, method="al_pipeline", workers=2, progress=False
    )
    assert len(result.history) == 6
    best = result.history.val_acc.max()
    assert result.history.val_acc[result.best_epoch - 1] == best > 0.6
    assert evaluate(model, data.validation).mean().item() == pytest.approx(best)
    assert torch.equal(evaluate(model, data.test), result.test_correct)
    assert evaluate(model, data.test, depth=1).shape == result.test_correct.shape
    with pytest.raises(ValueError, match="epochs is 0"):
        fit(model, data, epochs=0)


@pytest.mark.parametrize("mode", MODELS)
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_the_same_bits_as_a_plain_loop(mode, schedule):
    data, model, twin = toy(), MODELS[mode](), MODELS[mode]()
    options = {"epochs": 5, "batch_size": 6, "seed": 3, "scheduler": schedule, "workers": 2}
    result = fit(model, data, method=mode, progress=False, **options)
    losses, accuracies, states = _plain_loop(twin, data, schedule)
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


def _plain_loop(model, data, schedule):
    """Train five epochs without fit; return losses, accuracies and full states of each."""
    backprop = isinstance(model, BPModel)
    optimizers = (
        [model.optimizer] if backprop else [o for a in model for o in a.optimizers.values()]
    )
    losses, accuracies, states = [], [], []
    for epoch in range(5):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate_at(RATE, schedule, epoch, 5, 0.1)
        batches = data.train.batches(6, seed=3, epoch=epoch)
        record = train_epoch(model, batches, "bp" if backprop else "al", seed=3)
        losses.append(record.losses.mean().item())
        accuracies.append(evaluate(model, data.validation).mean().item())
        states.append(state_of(model))
    return losses, accuracies, states


def test_columns_of_associated_learning():
    data, model = toy(), dense_model(2)
    model.set_lr("ae", 5e-2)
    table = fit(model, data, epochs=2, batch_size=6, scheduler="cosine", progress=False).history
    assert table.columns.tolist() == [
        *["epoch", "lr", "loss", "samples", "associated_1", "autoencoder_1", "associated_2"],
        *["autoencoder_2", "val_acc", "stalled", "data_s", "train_s", "eval_s", "step_s"],
    ]
    assert table.epoch.tolist() == [1, 2]
    assert table.lr.tolist() == pytest.approx([1e-2, 0.55e-2])
    per_layer = table.filter(regex="associated|autoencoder").mean(axis=1)
    assert table.loss.tolist() == pytest.approx(per_layer.tolist())
    twin = dense_model(2)
    twin.set_lr("ae", 5e-2)
    losses = train_epoch(twin, data.train.batches(6), "al").losses.mean(0)
    assert table.loc[0, "autoencoder_1"] == pytest.approx(losses[0, 1].item())
    assert table.loc[0, "associated_2"] == pytest.approx(losses[1, 0].item())


def test_columns_of_backprop():
    table = fit(bp_model(), toy(), epochs=1, method="bp", progress=False).history
    assert table.columns.tolist() == [
        *["epoch", "lr", "loss", "samples", "val_acc", "data_s", "train_s", "eval_s", "step_s"]
    ]


def test_accuracy_at_every_exit():
    data, model = toy(), dense_model(3)
    result = fit(model, data, epochs=4, batch_size=6, exits=True, progress=False)
    best = result.history.iloc[result.best_epoch - 1]
    for depth in (1, 2, 3):
        expected = evaluate(model, data.validation, depth=depth).mean().item()
        assert best[f"val_acc_{depth}"] == expected
    assert result.history.val_acc_3.equals(result.history.val_acc.rename("val_acc_3"))
    assert not result.history.val_acc_1.equals(result.history.val_acc_3.rename("val_acc_1"))
    with pytest.raises(ValueError, match="exits=True needs an ALModel"):
        fit(bp_model(), data, epochs=1, method="bp", exits=True)


def test_training_accuracy_is_taken_on_clean_samples():
    data = toy()
    train = Spy(data.train)
    model = dense_model(2)
    result = fit(
        model, spied(data, train), epochs=1, augment="flip", evaluate_train=True, progress=False
    )
    assert result.history.train_acc[0] == evaluate(model, data.train).mean().item()
    assert [asked.get("shuffle", True) for asked in train.asked] == [True, False]


def test_augmentation_is_asked_for_only_if_wanted(monkeypatch):
    seen = []
    monkeypatch.setattr(Spy, "batches", _noting(seen))
    data = toy()
    for augment in ("none", "crop_flip"):
        fit(dense_model(1), spied(data, Spy(data.train)), epochs=1, augment=augment, progress=False)
    assert seen == [{"seed": 0, "epoch": 0}, {"seed": 0, "epoch": 0, "augment": "crop_flip"}]


def _noting(seen):
    def batches(self, batch_size, **options):
        seen.append(dict(options))
        return self.part.batches(batch_size, seed=options["seed"], epoch=options["epoch"])

    return batches


def test_the_test_part_is_looked_at_once_with_the_best_weights():
    data = toy()
    test = Spy(data.test)
    model = dense_model(2)
    result = fit(model, spied(data, test=test), epochs=5, batch_size=6, progress=False)
    assert len(test.asked) == 1
    assert result.best_epoch < 5, "a case in which the last epoch is not the best"
    assert torch.equal(result.test_correct, evaluate(model, data.test))
    assert result.test_acc == result.test_correct.mean().item()


def test_patience(monkeypatch):
    accuracies = iter([0.5, 0.6, 0.6, 0.55, 0.7, 0.9])
    real = trainer.judge

    def made_up(model, part, **options):
        if part is data.test:
            return real(model, part, **options)
        return Judged(values={"accuracy": next(accuracies)})

    monkeypatch.setattr(trainer, "judge", made_up)
    data = toy()
    result = fit(dense_model(1), data, epochs=6, patience=2, progress=False)
    assert result.history.val_acc.tolist() == pytest.approx([0.5, 0.6, 0.6, 0.55])
    assert result.best_epoch == 2  # the first of the equal ones
    assert result.stopped_early
    monkeypatch.undo()
    assert not fit(dense_model(1), data, epochs=2, patience=2, progress=False).stopped_early
    with pytest.raises(ValueError, match="patience is 0: it must be at least 1"):
        fit(dense_model(1), data, epochs=2, patience=0)


def test_times_are_apart(monkeypatch):
    """On a clock that only this test moves: for a batch, for a step and for an evaluation."""
    clock, data, model = Clock(), toy(), dense_model(1)
    for module in (engine, fitting_module, train):
        monkeypatch.setattr(module, "time", clock)
    slow = spied(data, Spy(data.train, wait=lambda: clock.sleep(0.5)))
    model[0].enc.f.register_forward_hook(lambda f, *_: clock.sleep(2.0 if f.training else 64.0))
    table = fit(model, slow, epochs=2, batch_size=6, progress=False).history
    assert table.data_s.tolist() == [10 * 0.5] * 2
    assert table.train_s.tolist() == [10 * 2.0] * 2
    assert table.eval_s.tolist() == [64.0] * 2
    assert table.step_s.tolist() == [2.0 + 0.5] * 2


def test_rates_are_put_back():
    data, model = toy(), dense_model(2)
    base = rates(model)
    fit(model, data, epochs=3, scheduler="cosine", progress=False)
    assert rates(model) == base
    failing = spied(data, Spy(data.train, fail_at=(1, 0)))
    with pytest.raises(KeyboardInterrupt):
        fit(model, failing, epochs=3, scheduler="cosine", progress=False)
    assert rates(model) == base


@pytest.mark.parametrize(
    ("mode", "losses"), [("al", {"associated", "autoencoder"}), ("bp", {"loss"})]
)
def test_the_bar_shows_losses_and_accuracy(monkeypatch, mode, losses):
    shown = []
    monkeypatch.setattr(
        fitting_module.tqdm, "set_postfix", lambda self, **values: shown.append(values)
    )
    result = fit(MODELS[mode](), toy(), epochs=2, method=mode)
    assert [set(values) for values in shown] == [losses | {"val_acc"}] * 2
    assert shown[-1]["val_acc"] == f"{result.history.val_acc.iloc[-1]:.3f}"


class Writer:
    """Stands in for TensorBoard's writer."""

    made = []

    def __init__(self, log_dir, purge_step=None):
        self.log_dir, self.purge_step, self.scalars, self.closed = log_dir, purge_step, [], False
        Writer.made.append(self)

    def add_scalar(self, name, value, step):
        self.scalars.append((name, value, step))

    def flush(self):
        self.flushed = len(self.scalars)

    def close(self):
        self.closed = True


@pytest.fixture
def writers(monkeypatch):
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(Writer, "made", [])
    return Writer.made


def test_tensorboard_gets_every_column_of_every_epoch(writers, tmp_path):
    result = fit(dense_model(2), toy(), epochs=3, tensorboard=tmp_path / "board", progress=False)
    (writer,) = writers
    assert writer.log_dir == str(tmp_path / "board")
    assert writer.purge_step is None
    assert writer.closed
    expected = result.history.melt("epoch")
    found = {(name, step): value for name, value, step in writer.scalars}
    assert len(found) == len(writer.scalars) == len(expected)
    for row in expected.itertuples():
        assert found[row.variable, row.epoch] == row.value


def test_tensorboard_forgets_the_epochs_that_a_resumed_run_repeats(writers, tmp_path):
    data, path = toy(), tmp_path / "run.pt"
    failing = spied(data, Spy(data.train, fail_at=(2, 0)))
    options = {"epochs": 3, "progress": False, "checkpoint": path, "tensorboard": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        fit(dense_model(2), failing, **options)
    fit(dense_model(2), data, **options)
    first, second = writers
    assert first.closed
    assert {step for _, _, step in first.scalars} == {1, 2}
    assert second.purge_step == 3
    assert {step for _, _, step in second.scalars} == {3}


def test_without_tensorboard_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    data = toy()
    train = Spy(data.train)
    with pytest.raises(ImportError, match=r"pip install alkit\[tensorboard\]"):
        fit(dense_model(1), spied(data, train), epochs=1, tensorboard="board")
    assert not train.asked, "before training, not after"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheduler": "linear"}, "unknown scheduler 'linear'"),
        ({"end_factor": -1.0}, "end_factor is -1.0"),
        ({"method": "bp"}, "unknown mode 'bp' for ALModel"),
        ({"batch_size": 0}, "batch_size is 0: it must be at least 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        fit(dense_model(1), toy(), **{"epochs": 1, "progress": False} | options)
