"""The executors give the same bits whatever the timing, and never lose an exception or a thread."""

import _thread
import random
import threading
import time
from functools import partial

import pytest

from alkit import train_epoch
from alkit.al.stages import Epoch
from alkit.al.train import schedule_for
from alkit.engine.run import run_single, run_threads
from alkit.schedule.task import al, al_pipeline, free_workers
from tests.helpers import (
    dense_model,
    differences,
    made_batches,
    random_cuts,
    run_in_any_order,
    state_of,
)


def _random_schedule(layers, rng):
    """Free workers on any number of layers, one worker and more workers than layers included."""
    mode, capacity = rng.choice(("al_m", "al_fm", "al_pipeline", "free", "free")), rng.randint(1, 3)
    if mode == "free":
        return free_workers(al_pipeline(layers, capacity=capacity), rng.randint(1, 6))
    if mode == "al_pipeline":
        cuts = random_cuts(layers, rng.randint(1, min(layers, 4)), rng)
        return al_pipeline(layers, cuts, capacity)
    return schedule_for(mode, layers, rng.randint(2, layers + 1))


def _trained(layers, batches, seed, run=run_single, schedule=None, delayed=lambda stage: stage):
    """Return a model's state and losses after an epoch, by default of al on one thread."""
    model = dense_model(layers)
    epoch = Epoch(model, seed)
    run(schedule or al(layers), [delayed(stage) for stage in epoch.stages], batches)
    return state_of(model) | {"losses": epoch.losses()}


def _differs(seed, threads):
    """One random stack, schedule and order of workers, or threads with delays, against al."""
    rng = random.Random(seed)
    layers, batches = rng.randint(2, 8), made_batches(rng.randint(1, 5), seed=seed)
    own = {"schedule": _random_schedule(layers, rng)}
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


SOAK = [pytest.param(block, 425, 75, marks=pytest.mark.soak) for block in range(6, 46)]


@pytest.mark.parametrize(("block", "orders", "delays"), [*((b, 20, 5) for b in range(6)), *SOAK])
def test_bits_under_random_interleavings_and_delays(block, orders, delays):
    """Of lanes on one thread, and of threads with random delays."""
    assert not any(_differs(1000 * block + at, threads=False) for at in range(orders))
    assert not any(_differs(1000 * block + at, threads=True) for at in range(delays))


def _no_thread_is_left():
    return not [each for each in threading.enumerate() if each.name.startswith("alkit-worker")]


class _Failing:
    """A stage that raises in one task."""

    def __init__(self, stage, kind):
        self.stage, self.kind = stage, kind

    def __getattr__(self, kind):
        def run(payload, batch, micro):
            if (kind, batch) == (self.kind, 2):
                raise ArithmeticError(f"injected into {kind} at batch {batch}")
            return getattr(self.stage, kind)(payload, batch, micro)

        return run


@pytest.mark.parametrize("mode", ["al_m", "al_fm", "al_pipeline", "free"])
@pytest.mark.parametrize(("kind", "layer"), [("forward", 0), ("backward", 1), ("update", 2)])
def test_an_exception_of_any_worker_reaches_the_caller(mode, kind, layer):
    epoch = Epoch(dense_model(3))
    epoch.stages[layer] = _Failing(epoch.stages[layer], kind)
    left = iter(made_batches(50))
    free = mode == "free"
    schedule = free_workers(al_pipeline(3), 2) if free else schedule_for(mode, 3)
    with pytest.raises(ArithmeticError, match=f"injected into {kind} at batch 2") as caught:
        run_threads(schedule, epoch.stages, left)
    # up to the bad batch, and what fits ahead of it: in the pipeline, two batches before each of
    # three layers and one in it
    assert len(list(left)) >= 50 - 3 - 3 * (2 + 1)
    assert f"alkit: in {kind} of stage {layer}, batch 2" in caught.value.__notes__[0]
    assert any(entry.name == "run" for entry in caught.traceback)
    assert _no_thread_is_left()


class _Empty:
    """A stage without mathematics."""

    updates = 0

    def forward(self, payload, batch, micro):
        return payload

    def backward(self, payload, batch, micro):
        pass

    def update(self, payload, batch, micro):
        self.updates += 1


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
    assert _no_thread_is_left()
    assert next(left, None) is not None


@pytest.mark.parametrize(("capacity", "free"), [(1, False), (3, False), (1, True)])
def test_back_pressure(capacity, free):
    """A slow last layer: the loader and the first layer wait instead of filling the memory."""
    ahead, stages = [], [_Empty(), _Empty()]

    def batches():
        for taken in range(1, 31):
            ahead.append(taken - stages[1].updates)
            yield taken

    schedule = al_pipeline(2, capacity=capacity)
    slow = [stages[0], _Delayed(stages[1], random.Random(0), 0.01)]
    run_threads(free_workers(schedule, 2) if free else schedule, slow, batches())
    # fed ahead of the first layer, in it, between the two, in the second
    assert max(ahead) <= 2 + 1 + capacity + 2
