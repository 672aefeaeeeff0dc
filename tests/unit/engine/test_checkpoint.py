"""Checkpoints: never half written, refused if of another run, and resumed to the same bits."""

import errno
import io
import multiprocessing
import os
import pickle
import random
import re
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from filelock import Timeout
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from tqdm.auto import tqdm

import alkit
from alkit import fit
from alkit.base import files
from alkit.engine.checkpoint import load, save
from tests.helpers import differences, state_of
from tests.make import MODELS, Spy, al_model, bp_model, spied, toy

EPOCHS = 4
OPTIONS = {"epochs": EPOCHS, "batch_size": 6, "seed": 3, "progress": False}
OPTIONS["scheduler"] = partial(CosineAnnealingLR, T_max=EPOCHS, eta_min=1e-3)
TIMES = ["data_s", "train_s", "eval_s", "step_s"]


def _run(mode, data, path=None, model=None, **options):
    model = model or MODELS[mode]()
    result = fit(model, data, method=mode, checkpoint=path, **OPTIONS | options)
    numbers = result.history.drop(columns=TIMES).to_numpy(dtype="float64")
    told = {"history": torch.tensor(numbers), "best": torch.tensor(result.best_epoch)}
    return state_of(model) | told | {"test": result.test_correct}


def _interrupt(mode, path, epoch, batch=2, **options):
    """Train until a batch of an epoch, counted from 0, and there be interrupted."""
    data = toy()
    failing = spied(data, Spy(data.train, fail_at=(epoch, batch)))
    with pytest.raises(KeyboardInterrupt):
        _run(mode, failing, path, workers=2, **options)


class _Evil:
    """Something that a checkpoint must not be able to call."""

    called = False

    def __reduce__(self):
        return (setattr, (_Evil, "called", True))


def _saved(content):
    torch.save(content, buffer := io.BytesIO())
    return buffer.getvalue()


TENSOR = torch.randn(1000)
WHOLE = _saved({"version": 1, "state": {"t": TENSOR}})
FLIPPED = bytearray(WHOLE)
FLIPPED[WHOLE.index(TENSOR.numpy().tobytes()) + 2000] ^= 1
DAMAGED = {
    **{f"cut at {share}": WHOLE[: int(share * len(WHOLE))] for share in (0.0, 0.1, 0.5, 0.999)},
    r"\(wrong checksum of": FLIPPED,
    "a pickle": pickle.dumps({"version": 1, "state": {}}),
    "weights": _saved({"weights": torch.zeros(1)}),
    r"\(it holds more than tensors.* call": _saved({"version": 1, "state": _Evil()}),
    r"\(it holds more than tensors": _saved({"version": 1, "state": nn.Linear(1, 1)}),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_files_that_are_damaged_or_no_checkpoints(tmp_path, what):
    (tmp_path / "run.pt").write_bytes(DAMAGED[what])
    said = what.partition(".*")[0] if what[0] == "\\" else ".*delete it"
    with pytest.raises(ValueError, match=f"run.pt is damaged or no checkpoint {said}") as caught:
        load(tmp_path / "run.pt")
    assert not _Evil.called
    assert not re.search("weights_only|trust|\x1b|still be loaded", str(caught.value))


@pytest.mark.parametrize("fault", ["/dev/full", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch, fault):
    path = tmp_path / "run.pt"
    save(path, {"n": 1})

    def fail(*_):
        raise OSError(errno.EIO, "I/O")

    if fault == "/dev/full":
        monkeypatch.setattr(Path, "open", lambda self, mode: open("/dev/full", mode))
    else:
        monkeypatch.setattr(files.os, fault, fail)
    with pytest.raises(OSError, match="No space left" if fault == "/dev/full" else "I/O"):
        save(path, {"t": torch.zeros(10**6)})
    monkeypatch.undo()
    assert load(path) == {"n": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Return the checkpoint of a run that has begun."""
    path = tmp_path_factory.mktemp("begun") / "run.pt"
    _interrupt("al", path, 1)
    return path


OTHER = [
    ({"batch_size": 7}, "batch_size is 6 there and 7 here; give"),
    ({"threads": 2}, "threads is 1 there and 2 here; give"),
    ({"seed": 4}, "seed is 3 there and 4 here; give"),
    ({"scheduler": None}, "scheduler is CosineAnnealingLR.*there and constant here"),
    ({"callbacks": [alkit.best("loss")]}, "best is its own there and loss here"),
]


@pytest.mark.parametrize(("other", "message"), OTHER)
def test_a_checkpoint_of_another_run_says_what_differs(begun, other, message):
    model = al_model(1)
    before = state_of(model)
    with pytest.raises(ValueError, match=f"run.pt is of another run: .*{message}"):
        _run("al", path=begun, model=model, **{"data": toy()} | other)
    assert not differences(before, state_of(model))


_torch_save = torch.save
KILLS = 10
LIVENESS_S = 900  # only a hang takes so long


def _stalling(write, mark):
    """Return a torch.save that writes in halves; between those of the n-th it waits for a kill."""
    left = iter(range(1, write))

    def save(content, file):
        buffer = io.BytesIO()
        _torch_save(content, buffer)
        whole = buffer.getvalue()
        file.write(whole[: len(whole) // 2])
        file.flush()
        if next(left, None) is None:
            mark.touch()
            time.sleep(LIVENESS_S)
        file.write(whole[len(whole) // 2 :])

    return save


def _worker(path, target, stall):
    """Train with a checkpoint and write what came out of it; killed at any moment.

    Args:
        stall: number of the write that stalls, and a file that then tells it; None for none.
    """
    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # tqdm's own also uses a semaphore, left behind by a kill
    if stall is not None:
        torch.save = _stalling(*stall)
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
        write, before = rng.choice([1, 2]) if in_write else 3, _written(path)
        stall = (write, stalled) if kills < KILLS else None
        process = context.Process(target=_worker, args=(path, target, stall))
        process.start()
        if stall is not None:
            seen = stalled.exists if in_write else lambda before=before: _written(path) > before
            deadline = time.monotonic() + LIVENESS_S
            while not seen() and process.is_alive():
                assert time.monotonic() < deadline
                time.sleep(0.002)
            time.sleep(0 if in_write else rng.uniform(0, 0.1))
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
    assert {file.name for file in tmp_path.iterdir()} == {"outcome.pt", "run.pt", ".run.pt.lock"}
    expected = _run("al", toy(), epochs=10)
    assert not differences(expected, torch.load(target, weights_only=True))


def _written(path):
    return path.stat().st_mtime_ns if path.exists() else 0


def test_two_runs_on_one_file_are_told_apart(tmp_path):
    """A run that has begun holds its checkpoint."""
    said = []

    def again(scores, y):
        with pytest.raises(Timeout, match="run.pt.lock' could not be acquired"):
            fit(bp_model(), toy(), method="bp", checkpoint=tmp_path / "run.pt", **OPTIONS)
        said.append(1)
        return 0.0

    own = OPTIONS | {"epochs": 1, "checkpoint": tmp_path / "run.pt", "metrics": {"again": again}}
    fit(bp_model(), toy(), method="bp", **own)
    assert said
