"""Every schedule that exists, on every executor: the same numbers, or a word that says why not."""

import pytest
import torch

from alkit import launch
from alkit.delayed.methods import METHODS
from alkit.delayed.schedules import SHARED as SEVERAL
from alkit.delayed.schedules import schedule_for
from alkit.engine import ranks as engine_ranks
from alkit.engine.run import run_single, run_threads
from alkit.schedule.clock import simulate
from alkit.schedule.flushed import block_by_block, gpipe, one_f_one_b, zero_bubble
from alkit.schedule.task import Task, al, al_fm, al_m, al_pipeline, free_workers
from alkit.split.schedule import split

PRIME, BATCHES = 2**31 - 1, 7
BOUND = {
    "bp": block_by_block(1),
    "block_by_block": block_by_block(3),
    "al": al(3),
    "al_pipeline": al_pipeline(3),
    "al_pipeline of two": al_pipeline(3, [2], capacity=1),
    "gpipe": gpipe(3, 4),
    "1f1b": one_f_one_b(3, 4),
    "zero_bubble": zero_bubble(3, 4),
    **{name: schedule_for(name, 3) for name in METHODS if name not in ("2bw", *SEVERAL)},
    "2bw": schedule_for("2bw", 3, 4),
}
SHARED = {
    "al_m": al_m(3),
    "al_fm": al_fm(3),
    "al_fm of two": al_fm(3, 2),
    "split": split(1),
    "pipelearn": split(3),
    "split without a head": split(3, returns=False),
    "1f1b, free": free_workers(one_f_one_b(3, 4), 2),
}
FREE = ("al_pipeline", "pipedream", "fr", "ddg_barrier")
SHARED |= {f"{name}, free": free_workers(BOUND[name], 2) for name in FREE}
SCHEDULES = BOUND | SHARED | {name: schedule_for(name, 4, 4) for name in SEVERAL}


def _mix(*numbers):
    mixed = 7
    for number in numbers:
        mixed = (mixed * 48271 + int(number) + 1) % PRIME
    return mixed


class _Arithmetic:
    """A stage whose weights are one number that forgets neither an input nor their order."""

    def __init__(self, stage):
        self.weights, self.gradient = stage + 1, 0
        self.kept, self.parts = {}, ()

    def forward(self, payload, batch, micro):
        x, y = (0, torch.tensor(batch)) if payload is None else payload
        self.kept[batch, micro] = _mix(x, self.weights)
        return torch.tensor(self.kept[batch, micro]), y

    def backward(self, payload, batch, micro):
        above = 0 if payload is None else payload[0]
        found = _mix(self.kept.get((batch, micro), 0), above, self.weights)
        self.gradient = (self.gradient + found) % PRIME
        return torch.tensor(found), torch.tensor(batch)

    def backward_input(self, payload, batch, micro):
        above = 0 if payload is None else payload[0]
        self.kept[batch, micro] = _mix(self.kept[batch, micro], above)
        return torch.tensor(self.kept[batch, micro]), torch.tensor(batch)

    def backward_weight(self, payload, batch, micro):
        self.gradient = (self.gradient + _mix(self.kept[batch, micro], self.weights)) % PRIME

    def update(self, payload, batch, micro):
        self.weights, self.gradient = _mix(self.weights, self.gradient), 0

    def send(self, payload, batch, micro):
        return payload


def _batches():
    return [(torch.tensor(100 + batch), torch.tensor(batch)) for batch in range(BATCHES)]


def _ended(run, schedule):
    stages = [_Arithmetic(stage) for stage in range(schedule.stages)]
    run(schedule, stages, _batches())
    return [stage.weights for stage in stages]


@pytest.mark.parametrize("name", SCHEDULES)
def test_threads_end_in_the_numbers_of_one_thread_and_the_clock_keeps_every_edge(name):
    schedule = SCHEDULES[name]
    expected = _ended(run_single, schedule)
    assert len(set(expected)) == schedule.stages
    assert _ended(run_threads, schedule) == expected
    timeline = simulate(schedule, lambda task: 1 + task.stage / 3, BATCHES)
    done = {Task(*interval[1:5]): interval for interval in timeline.intervals}
    orders = [schedule.order(lane, range(BATCHES)) for lane in range(schedule.lanes)]
    assert set(done) == {task for order in orders for task in order}
    for task, interval in done.items():
        ends_s = (done[edge.task].end_s for edge in schedule.edges(task) if edge.task in done)
        assert interval.start_s >= max(ends_s, default=0.0)


def _on_ranks(workers):
    found = {}
    for name, schedule in BOUND.items():
        if schedule.workers == workers:
            ended = _ended(engine_ranks.run_ranks, schedule)
            mine = torch.distributed.get_rank()
            own = [i for i, at in enumerate(engine_ranks.owners(schedule)) if at == mine]
            found[name] = {stage: ended[stage] for stage in own}
    return found


@pytest.mark.parametrize("workers", sorted({schedule.workers for schedule in BOUND.values()}))
def test_ranks_end_in_the_numbers_of_one_thread(workers):
    ranks = launch(_on_ranks, workers, ranks=workers)
    for name in ranks[0]:
        together = {stage: weights for own in ranks for stage, weights in own[name].items()}
        expected = _ended(run_single, BOUND[name])
        assert [together[stage] for stage in range(len(expected))] == expected, name
