"""Checkpoints: never half written, refused if of another run, and resumed to the same bits."""

import dataclasses
import io
import multiprocessing
import os
import pickle
import random
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn
from tqdm.auto import tqdm

from alkit import BPModel, fit
from alkit.data import files
from alkit.engine.checkpoint import load, save
from alkit.engine.rates import rates
from tests.helpers import CLASSES, WIDTH, dense_model, differences, state_of
from tests.unit.al.helpers import MODELS, Spy, al_model, bp_model, spied, toy

EPOCHS = 4
OPTIONS = {"epochs": EPOCHS, "batch_size": 6, "seed": 3, "scheduler": "cosine", "progress": False}
TIMES = ["data_s", "train_s", "eval_s", "step_s"]


def _outcome(model, result):
    """Return all that has to be the same bits: model, optimisers, history and test."""
    numbers = torch.tensor(result.history.drop(columns=TIMES).to_numpy(dtype="float64"))
    told = {"history": numbers, "test": result.test_correct}
    return state_of(model) | told | {"best": torch.tensor(result.best_epoch)}


def _run(mode, data, path=None, model=None, **options):
    model = model or MODELS[mode]()
    return _outcome(model, fit(model, data, method=mode, checkpoint=path, **OPTIONS | options))


def _interrupt(mode, path, epoch, batch=2, model=None, **options):
    """Train until a batch of an epoch, counted from 0, and there be interrupted."""
    data = toy()
    failing = spied(data, Spy(data.train, fail_at=(epoch, batch)))
    with pytest.raises(KeyboardInterrupt):
        _run(mode, failing, path, model, workers=2, **options)


# --- the file


def test_what_is_saved_is_loaded(tmp_path):
    path = tmp_path / "new" / "run.pt"
    state = {"t": torch.randn(3), "n": 0.1, "s": "é", "none": None, "rows": [{"a": 1}, {"a": 2}]}
    save(path, state)
    found = load(path)
    assert torch.equal(found.pop("t"), state.pop("t"))
    assert found == state
    save(path, {"n": 2})
    assert load(path) == {"n": 2}
    assert [file.name for file in path.parent.iterdir()] == ["run.pt"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file(tmp_path, share):
    path = tmp_path / "run.pt"
    save(path, {"t": torch.randn(1000)})
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"run.pt is damaged or no checkpoint .*delete it"):
        load(path)


def test_a_flipped_bit_in_a_tensor(tmp_path):
    path = tmp_path / "run.pt"
    tensor = torch.randn(1000)
    save(path, {"t": tensor})
    content = bytearray(path.read_bytes())
    content[content.index(tensor.numpy().tobytes()) + 2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged or no checkpoint \(wrong checksum of"):
        load(path)


def test_files_that_are_no_checkpoints(tmp_path):
    path = tmp_path / "run.pt"
    for content in (b"text", pickle.dumps({"version": 1, "state": {}})):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="damaged or no checkpoint"):
            load(path)
    for content in ({"weights": torch.zeros(1)}, torch.zeros(1), {"version": 1, "state": _Evil()}):
        torch.save(content, path)
        with pytest.raises(ValueError, match="damaged or no checkpoint"):
            load(path)
    assert not _Evil.called
    torch.save({"version": 99, "state": {}}, path)
    with pytest.raises(ValueError, match="is a checkpoint of version 99; this is version 1"):
        load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.pt")


class _Evil:
    """Something that a checkpoint must not be able to call."""

    called = False

    def __reduce__(self):
        return (setattr, (_Evil, "called", True))


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "run.pt"
    save(path, {"n": 1})

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(files.os, step, full)
    with pytest.raises(OSError, match="no space left"):
        save(path, {"n": 2})
    monkeypatch.undo()
    assert load(path) == {"n": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


def test_fit_ignores_and_removes_a_leftover(tmp_path):
    left = tmp_path / f".run.pt.{2**22 + 1}.partial"  # above the highest process number
    left.write_bytes(b"half")
    _run("al", toy(), tmp_path / "run.pt", epochs=1)
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


# --- resuming


@pytest.mark.parametrize("mode", MODELS)
@pytest.mark.parametrize("epoch", range(EPOCHS))
def test_resumed_after_any_epoch_is_the_same_bits(tmp_path, mode, epoch):
    """The second process builds other first weights: all must come from the checkpoint."""
    path = tmp_path / "run.pt"
    extra = {"evaluate_train": True, "exits": mode != "bp"}
    expected = _run(mode, toy(), **extra)
    _interrupt(mode, path, epoch, **extra)
    assert len(load(path)["rows"]) == epoch
    found = _run(mode, toy(), path, MODELS[mode](seed=1), workers=2, **extra)
    assert not differences(expected, found)
    assert differences(expected, _run(mode, toy(), model=MODELS[mode](seed=1), **extra))


def test_interrupted_often_in_one_process_and_changing_modes(tmp_path):
    """As in a notebook: the cell is run again on the model that the interrupt left spoilt."""
    path, model = tmp_path / "run.pt", al_model()
    base = rates(model)
    for epoch, mode in ((0, "al"), (0, "al_pipeline"), (2, "al_fm"), (3, "al_m")):
        _interrupt(mode, path, epoch, model=model)
        assert rates(model) == base
    found = _run("al_pipeline", toy(), path, model, workers=2)
    assert not differences(_run("al", toy()), found)
    assert rates(model) == base


def test_a_finished_run_is_returned_without_training_or_testing(tmp_path):
    path, data = tmp_path / "run.pt", toy()
    expected = _run("al", data, path)
    train, test = Spy(data.train), Spy(data.test)
    written = path.stat().st_mtime_ns
    model = al_model(seed=1)
    assert not differences(expected, _run("al", spied(data, train, test), path, model))
    assert all(asked == {"shuffle": False} for asked in train.asked)  # looked at, not trained
    assert not test.asked
    assert path.stat().st_mtime_ns == written
    assert rates(model) == rates(al_model())


def test_killed_between_the_last_epoch_and_the_test(tmp_path):
    path, data = tmp_path / "run.pt", toy()
    failing = spied(data, test=Spy(data.test, fail_at=(None, 0)))
    with pytest.raises(KeyboardInterrupt):
        _run("al", failing, path)
    train = Spy(data.train)
    found = _run("al", spied(data, train), path, al_model(seed=1))
    assert all(asked == {"shuffle": False} for asked in train.asked)  # looked at, not trained
    assert not differences(_run("al", data), found)


def test_patience_goes_on_where_it_was(tmp_path):
    path = tmp_path / "run.pt"
    options = {"epochs": 30, "patience": 3}
    whole = fit(al_model(), toy(), **OPTIONS | options)
    assert whole.stopped_early
    stopped = len(whole.history)
    _interrupt("al", path, stopped - 1, **options)
    again = fit(al_model(1), toy(), checkpoint=path, **OPTIONS | options)
    assert again.stopped_early
    pd.testing.assert_frame_equal(
        again.history.drop(columns=TIMES), whole.history.drop(columns=TIMES)
    )


@pytest.mark.parametrize("mode", ["al", "bp"])
@pytest.mark.parametrize("lost", ["all", "step", "exp_avg"])
def test_without_an_optimiser_state_the_bits_differ(tmp_path, mode, lost):
    """Negative control: the comparison above can fail."""
    path = tmp_path / "run.pt"
    _interrupt(mode, path, 2)
    saved = load(path)
    name = "optimizer" if mode == "bp" else "1.ae"
    states = saved["optimizers"][name]["state"]
    if lost == "all":
        states.clear()
    else:
        states[0][lost].zero_()
    save(path, saved)
    found = _run(mode, toy(), path)
    assert differences(_run(mode, toy()), found)


# --- checkpoints of other runs


@pytest.mark.parametrize(
    ("other", "there", "here"),
    [
        ({"epochs": 9}, "epochs is 4", "9"),
        ({"batch_size": 7}, "batch_size is 6", "7"),
        ({"threads": 2}, "threads is 1", "2"),
        ({"seed": 4}, "seed is 3", "4"),
        ({"scheduler": "constant"}, "scheduler is 'cosine'", "'constant'"),
        ({"end_factor": 0.2}, "end_factor is 0.1", "0.2"),
        ({"augment": "flip"}, "augment is 'none'", "'flip'"),
        ({"patience": 2}, "patience is None", "2"),
        ({"exits": True}, "exits is False", "True"),
        ({"evaluate_train": True}, "evaluate_train is False", "True"),
    ],
)
def test_other_settings_name_both_values(tmp_path, other, there, here):
    path = tmp_path / "run.pt"
    _interrupt("al", path, 0)
    model = al_model(1)
    before = state_of(model)
    with pytest.raises(ValueError, match=rf"of another run: {there} there and {here} here; give"):
        _run("al", toy(), path, model, **other)
    assert not differences(before, state_of(model))


def test_another_rate_optimiser_or_data_set(tmp_path):
    path = tmp_path / "run.pt"
    _interrupt("al", path, 1)
    model = al_model()
    model.set_lr("ae", 1.0)
    with pytest.raises(ValueError, match=r"lr of 0.ae.0 is 0.03 there and 1.0 here"):
        _run("al", toy(), path, model)
    with pytest.raises(ValueError, match="data is 'toy 60/20/20 .*there and 'toy 60/20/20"):
        _run("al", toy(seed=1), path)
    _interrupt("bp", tmp_path / "bp.pt", 1)
    model = bp_model()
    model.optimizer = torch.optim.Adam(model.parameters(), lr=3e-2, betas=(0.5, 0.9), fused=True)
    with pytest.raises(ValueError, match=r"optimizer has 0.betas = \(0.9, 0.999\) there and \(0.5"):
        _run("bp", toy(), tmp_path / "bp.pt", model)


@pytest.mark.parametrize(
    ("mode", "make", "message"),
    [
        ("al", lambda: dense_model(3), r"layers.2.enc.f.0.weight is missing there and float32"),
        ("al", lambda: dense_model(1), r"layers.1.\S+ is float32 \(6, 6\) there and missing in"),
        ("bp", bp_model, "blocks.0.0.weight is missing there"),
        ("al", lambda: al_model().double(), r"is float32 \(6, 6\) there and float64 \(6, 6\) in"),
    ],
)
def test_another_model_is_named_by_its_first_difference(tmp_path, mode, make, message):
    path = tmp_path / "run.pt"
    _interrupt("al", path, 1)
    model, data = make(), toy()
    x = data.train.x.to(next(model.parameters()).dtype)  # else that is what is said first
    data = dataclasses.replace(data, train=dataclasses.replace(data.train, x=x))
    with pytest.raises(ValueError, match=f"run.pt is of another run: .*{message}"):
        _run(mode, data, path, model)


def test_another_width(tmp_path):
    path = tmp_path / "run.pt"
    _interrupt("bp", path, 1)
    wide = BPModel([nn.Sequential(nn.Linear(WIDTH, 9), nn.BatchNorm1d(9)), nn.Linear(9, CLASSES)])
    with pytest.raises(
        ValueError, match=r"0.0.weight is float32 \(6, 6\) there and float32 \(9, 6"
    ):
        _run("bp", toy(), path, wide)


# --- killed at any moment


class _Stalling:
    """Writes checkpoints in pieces; in the middle of the n-th one it waits to be killed."""

    def __init__(self, write: int, mark: Path) -> None:
        self.left, self.mark = write, mark

    def __call__(self, content, file):
        buffer = io.BytesIO()
        _torch_save(content, buffer)
        whole = buffer.getvalue()
        self.left -= 1
        for piece, start in enumerate(range(0, len(whole), len(whole) // 4)):
            if piece == 2 and not self.left:
                self.mark.touch()
                time.sleep(LIVENESS_S)
            file.write(whole[start : start + len(whole) // 4])
            file.flush()


_torch_save = torch.save
KILLS = 16
LIVENESS_S = 900  # only a hang takes so long


def _worker(path, target, stall):
    """Train with a checkpoint and write what came out of it; killed at any moment.

    Args:
        stall: number of the write that stalls, and a file that then tells it; None for none.
    """
    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # tqdm's own also uses a semaphore, left behind by a kill
    if stall is not None:
        torch.save = _Stalling(*stall)
    outcome = _run("al_pipeline", toy(), path, workers=2, epochs=10)
    _torch_save(outcome, f"{target}.partial")
    os.replace(f"{target}.partial", target)


def test_killed_at_random_moments_ends_in_the_same_bits(tmp_path):
    """In turn in the middle of a write, and at any moment of the two epochs after one."""
    # a server that has imported everything once forks the workers: four seconds less for each;
    # the first optimiser of a process imports torch's compiler
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "tests.unit.engine.test_checkpoint"])
    path, target, stalled = (tmp_path / name for name in ("run.pt", "outcome.pt", "stalled"))
    rng, kills, halves, epochs = random.Random(0), 0, 0, set()
    while not target.exists():
        in_write = kills % 2 == 0
        write = rng.choice([1, 2]) if in_write else 3
        before = _written(path)
        stall = (write, stalled) if kills < KILLS else None
        process = context.Process(target=_worker, args=(path, target, stall))
        process.start()
        if stall is not None:
            if in_write:
                _until(stalled.exists, process)
            else:
                _until(lambda before=before: _written(path) > before, process)
                time.sleep(rng.uniform(0, 0.1))
            process.kill()
        process.join(LIVENESS_S)
        stalled.unlink(missing_ok=True)
        if not target.exists():
            assert process.exitcode == -9
            kills += 1
            halves += len(list(tmp_path.glob(".run.pt.*.partial")))
            epochs.add(len(load(path)["rows"]) if path.exists() else None)
    assert kills >= 6
    assert halves >= 3, "kills that met a write"
    assert len(epochs) >= 3, "kills at several epochs"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["outcome.pt", "run.pt"]
    expected = _run("al", toy(), epochs=10)
    assert not differences(expected, torch.load(target, weights_only=True))


def _written(path):
    return path.stat().st_mtime_ns if path.exists() else 0


def _until(condition, process):
    """Wait for what a worker does, or for its end."""
    deadline = time.monotonic() + LIVENESS_S
    while not condition() and process.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_two_runs_on_one_file_are_told_apart(tmp_path):
    """A run that has begun holds its checkpoint."""
    said = []

    def again(scores, y):
        with pytest.raises(RuntimeError, match="run.pt is in use by process .*another path"):
            fit(bp_model(), toy(), method="bp", checkpoint=tmp_path / "run.pt", **OPTIONS)
        said.append(1)
        return 0.0

    own = OPTIONS | {"epochs": 1, "checkpoint": tmp_path / "run.pt", "metrics": {"again": again}}
    fit(bp_model(), toy(), method="bp", **own)
    assert said
