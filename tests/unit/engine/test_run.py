"""The executors give the same bits whatever the timing, and never lose an exception or a thread."""

import _thread
import random
import threading
import time
from functools import partial

import pytest
import torch

from alkit import train_epoch
from alkit.al.stages import Epoch
from alkit.al.train import schedule_for
from alkit.engine import run as executor
from alkit.engine.run import Run, run_single, run_threads
from alkit.schedule import task as schedules
from tests.helpers import (
    dense_model,
    differences,
    made_batches,
    random_cuts,
    run_in_any_order,
    state_of,
)

MODES = ("al_m", "al_fm", "al_pipeline")


def _schedule(mode, layers):
    """The schedule of a mode; "free" is al_pipeline with two free workers."""
    return schedule_for("al_pipeline", layers, 2) if mode == "free" else schedule_for(mode, layers)


def _random_schedule(layers, rng):
    mode = rng.choice(MODES)
    if mode == "al_pipeline":
        cuts = random_cuts(layers, rng.randint(1, min(layers, 4)), rng)
        return schedules.al_pipeline(layers, cuts, rng.randint(1, 3))
    return schedule_for(mode, layers, rng.randint(2, layers + 1))


def _trained(layers, batches, seed, run=run_single, schedule=None, delayed=lambda stage: stage):
    """Return a model's state and losses after an epoch, by default of al on one thread."""
    model = dense_model(layers)
    epoch = Epoch(model, seed)
    stages = [delayed(stage) for stage in epoch.stages]
    run(schedule or schedules.al(layers), stages, batches)
    return state_of(model) | {"losses": epoch.losses()}


def _differs(seed, threads, schedule=_random_schedule, most_layers=6):
    """One random stack, schedule and order of workers, or threads with delays, against al."""
    rng = random.Random(seed)
    layers, batches = rng.randint(2, most_layers), made_batches(rng.randint(1, 5), seed=seed)
    own = {"schedule": schedule(layers, rng)}
    if threads:
        own |= {"run": run_threads, "delayed": lambda stage: _Delayed(stage, rng, 0.002)}
    else:
        own |= {"run": partial(run_in_any_order, choose=rng.randrange)}
    return differences(_trained(layers, batches, seed), _trained(layers, batches, seed, **own))


class _Delayed:
    """A stage whose tasks take a random time, so that workers overtake each other."""

    def __init__(self, stage, rng, longest_s):
        self.stage, self.rng, self.longest_s = stage, rng, longest_s

    def __getattr__(self, kind):
        def run(payload, batch, micro):
            time.sleep(self.rng.random() * self.longest_s)
            return getattr(self.stage, kind)(payload, batch, micro)

        return run


def _free(layers, rng):
    """Free workers on any number of layers, one worker and more workers than layers included."""
    return schedules.free_workers(
        schedules.al_pipeline(layers, capacity=rng.randint(1, 3)), rng.randint(1, 6)
    )


BOUND, FREE = {}, {"schedule": _free, "most_layers": 8}


@pytest.mark.parametrize("block", range(8))
@pytest.mark.parametrize("kind", [BOUND, FREE], ids=["bound", "free"])
def test_bits_under_random_interleavings_and_delays(kind, block):
    """320 interleavings of lanes on one thread, and 96 of threads with random delays."""
    assert all(not _differs(1000 * block + at, threads=False, **kind) for at in range(20))
    assert all(not _differs(1000 * block + at, threads=True, **kind) for at in range(6))


@pytest.mark.soak
@pytest.mark.parametrize("block", range(20))
@pytest.mark.parametrize("kind", [BOUND, FREE], ids=["bound", "free"])
def test_bits_under_ten_thousand_interleavings(kind, block):
    first = 100_000 + 450 * block
    assert all(not _differs(first + at, threads=False, **kind) for at in range(425))
    assert all(not _differs(first + at, threads=True, **kind) for at in range(75))


@pytest.mark.parametrize(("layers", "workers"), [(2, 1), (3, 2), (4, 3), (6, 4)])
def test_four_modes_end_in_the_same_bits(layers, workers):
    """Over two epochs: the second draws other noise, as one long epoch does."""
    results, (first, second) = [], (made_batches(5), made_batches(2, seed=1))
    torch.set_num_threads(2)
    for mode in ("al", *MODES):
        model = dense_model(layers)
        for batches in (first, second):
            with torch.no_grad():
                record = train_epoch(model, batches, mode, workers, seed=7)
                assert not torch.is_grad_enabled()
            assert record.losses.shape == (len(batches), layers, 2)
        assert int(model.batches_trained) == 7
        results.append(state_of(model) | {"losses": record.losses})
    assert torch.get_num_threads() == 2, "the caller's"
    assert all(not differences(results[0], other) for other in results[1:])
    model = dense_model(layers)
    train_epoch(model, first + second, "al_pipeline", workers, seed=7)
    assert not differences(state_of(model), {name: results[0][name] for name in state_of(model)})


class _Failing:
    """A stage that raises in one task."""

    def __init__(self, stage, kind, batch):
        self.stage, self.kind, self.batch = stage, kind, batch

    def __getattr__(self, kind):
        def run(payload, batch, micro):
            if (kind, batch) == (self.kind, self.batch):
                raise ArithmeticError(f"injected into {kind} at batch {batch}")
            return getattr(self.stage, kind)(payload, batch, micro)

        return run


@pytest.mark.parametrize("mode", [*MODES, "free"])
@pytest.mark.parametrize("kind", ["forward", "backward", "update"])
@pytest.mark.parametrize("layer", range(3))
def test_an_exception_of_any_worker_reaches_the_caller(mode, kind, layer):
    epoch = Epoch(dense_model(3))
    epoch.stages[layer] = _Failing(epoch.stages[layer], kind, 2)
    left = iter(made_batches(50))
    with pytest.raises(ArithmeticError, match=f"injected into {kind} at batch 2") as caught:
        run_threads(_schedule(mode, 3), epoch.stages, left)
    # up to the bad batch, and what fits ahead of it: in the pipeline, two batches before each of
    # three layers and one in it
    assert len(list(left)) >= 50 - 3 - 3 * (2 + 1)
    assert f"alkit: in {kind} of stage {layer}, batch 2" in caught.value.__notes__[0]
    assert any(entry.name == "run" for entry in caught.traceback)
    assert not [each for each in threading.enumerate() if each.name.startswith("alkit-worker")]


class _Arithmetic:
    """A stage without mathematics."""

    def __init__(self):
        self.updates = 0

    def forward(self, payload, batch, micro):
        return payload

    def backward(self, payload, batch, micro):
        pass

    def update(self, payload, batch, micro):
        self.updates += 1


def test_a_free_worker_takes_the_layer_with_most_work_left(monkeypatch):
    """Layer 1 takes four times as long as the others: it is taken unless something is begun."""
    seconds = {0: 1.0, 1: 4.0, 2: 1.0}
    lanes = Run(_schedule("free", 3), [_Arithmetic()] * 3)
    for batch in range(6):
        lanes.put(batch, batch)
    taken = []
    while len(taken) < 40:
        begun = [lane for lane in lanes.ready if lanes.next[lane].kind != "forward"]
        ready = 1 in lanes.ready
        task = lanes.pick(range(3))
        assert not begun or task.stage in begun
        taken.append((task.stage, ready and not begun))
        times = iter([0.0, seconds[task.stage]])
        monkeypatch.setattr(executor.time, "perf_counter", lambda times=times: next(times))
        lanes.perform(task, 0)
        monkeypatch.undo()
    assert all(stage == 1 for stage, ready in taken[9:] if ready)
    assert {stage for stage, _ in taken[9:]} == {0, 1, 2}


def test_a_lane_does_not_wait_for_the_loader():
    """A loader that looks at what batch 0 has left behind before it gives batch 1."""
    stages, seen = [_Arithmetic() for _ in range(3)], []

    def batches():
        for batch in range(4):
            deadline = time.monotonic() + 60
            while batch and stages[2].updates < batch and time.monotonic() < deadline:
                time.sleep(0.001)
            seen.append(stages[2].updates)
            yield batch

    run_threads(_schedule("free", 3), stages, batches())
    assert seen == [0, 1, 2, 3]


def test_a_loader_that_fails_stops_the_workers():
    def batches():
        yield from made_batches(3)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        train_epoch(dense_model(3), batches(), "al_pipeline", 3)
    assert not [each for each in threading.enumerate() if each.name.startswith("alkit-worker")]


@pytest.mark.parametrize("layer", range(3))
def test_an_interrupt_stops_cleanly(layer):
    """It comes from a worker, so the caller may be anywhere between two batches."""
    model, calls = dense_model(3), iter(range(10_000))

    def interrupt(*_):
        if next(calls) == 20:
            _thread.interrupt_main()

    model[layer].enc.f.register_forward_hook(interrupt)
    left = iter(made_batches(1) * 10_000)
    with pytest.raises(KeyboardInterrupt):
        train_epoch(model, left, "al_pipeline", 3)
    assert not [each for each in threading.enumerate() if each.name.startswith("alkit-worker")]
    assert next(left, None) is not None


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("capacity", [1, 3])
def test_back_pressure(capacity, free):
    """A slow last layer: the loader and the first layer wait instead of filling the memory."""
    ahead, taken, finished = [], 0, 0

    def batches():
        nonlocal taken
        for batch in made_batches(1) * 30:
            taken += 1
            ahead.append(taken - finished)
            yield batch

    class Slow(_Delayed):
        def update(self, payload, batch, micro):
            nonlocal finished
            time.sleep(0.002)
            self.stage.update(payload, batch, micro)
            finished += 1

    epoch = Epoch(dense_model(2))
    epoch.stages[1] = Slow(epoch.stages[1], random.Random(0), 0.0)
    schedule = schedules.al_pipeline(2, capacity=capacity)
    run_threads(schedules.free_workers(schedule, 2) if free else schedule, epoch.stages, batches())
    # fed ahead of the first layer, in it, between the two, in the second
    assert max(ahead) <= 2 + 1 + capacity + 2


def test_the_mailbox_and_the_board_stay_small():
    schedule = schedules.al_pipeline(2)
    epoch = Epoch(dense_model(2))
    run = Run(schedule, epoch.stages)
    for batch, pair in enumerate(made_batches(1) * 50):
        run.put(batch, pair)
        while (task := run.pick(range(2))) is not None:
            run.perform(task, 0)
        assert len(run.done) <= 1
        assert len(run.mail) <= 1
