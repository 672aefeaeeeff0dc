"""One network of four blocks, ten methods: the rows of notebook 15, and what each row pays.

Accuracy comes from `alkit.fit`; step times of two workers from its timelines; what four devices
would do from the method's own schedule on the clock, at task times that its own run measured.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import torch
from torch import nn
from tqdm.auto import tqdm

import alkit
from alkit.al.recipes import FIXED_CODES
from alkit.data.parts import DataSet
from alkit.delayed.schedules import schedule_for
from alkit.engine.launch import RankFailed
from alkit.engine.trainer import Record
from alkit.schedule.clock import simulate
from alkit.schedule.flushed import one_f_one_b
from alkit.schedule.locks import LOCKS, removed_locks
from alkit.schedule.targets import target_propagation
from alkit.schedule.task import Schedule, Task, al_pipeline
from alkit.schedule.timeline import Timeline
from alkit.schedule.validate import validate
from alkit.split.schedule import split

BLOCKS, MICRO = 4, 4
SHOWN = 8  # batches on the clock
RATE = 1e-3  # the default one, where no other was chosen
LEARNED = replace(FIXED_CODES["images"], codes="learned", centred=True)


@dataclass(frozen=True)
class Row:
    """A method as notebook 15 shows it.

    Attributes:
        method: of `alkit.METHODS`.
        schedule: of four blocks, a device each.
        options: of `alkit.fit`.
        workers: what `alkit.fit` takes to use two cores.
        changed: what else differs from plain backprop: network, optimiser; "" if nothing does.
    """

    method: str
    schedule: Callable[[], Schedule]
    options: Mapping[str, Any] = field(default_factory=dict)
    workers: Mapping[str, Any] = field(default_factory=dict)
    changed: str = ""


ADAM: dict[str, Any] = {"optimizer": torch.optim.Adam}  # one optimiser for all rows
TARGETS: dict[str, Any] = ADAM | {"feedback_lr": 1e-2}
TWO = {"workers": 2}


def _delayed(method: str, micro: int = 1) -> Row:
    options = ADAM | ({"micro": micro} if micro > 1 else {})
    return Row(method, lambda: schedule_for(method, BLOCKS, micro), options, TWO)


ROWS = {
    "bp": Row("bp", lambda: schedule_for("seq", BLOCKS), ADAM, {"threads": 2}),
    "al_pipeline": Row(
        "al_pipeline",
        lambda: al_pipeline(BLOCKS),
        ADAM | {"recipe": LEARNED, "read": "code"},  # as its records are
        TWO,
        "a bridge and a learned label code per block, which it is read by",
    ),
    "local": Row(
        "local_pipeline",
        lambda: al_pipeline(BLOCKS),
        ADAM | {"rule": "fixed_codes", "read": "code"},
        TWO,
        "a bridge and a fixed code per class and block, which it is read by",
    ),
    "ddg": _delayed("ddg"),
    "fr": _delayed("fr"),
    "pipedream": _delayed("pipedream"),
    "1f1b": _delayed("1f1b", MICRO),
    "pipelearn": Row(
        "pipelearn",
        lambda: split(MICRO),
        ADAM | {"micro": MICRO, "cuts": [2]},
        {"workers": 1},
        "device and server instead of four devices",
    ),
    "elastic": Row(
        "elastic",
        lambda: one_f_one_b(BLOCKS, MICRO),
        ADAM | {"freeze": "schedule"},
        TWO | {"micro": MICRO},
        "layers freeze while it trains; its time and memory are those before anything is frozen",
    ),
    "dtp": Row(
        "dtp",
        lambda: target_propagation(BLOCKS),
        TARGETS,
        {"ranks": 2},
        "a learned feedback map beside each block, which has an SGD of its own",
    ),
}


def network(data: DataSet, seed: int, width: int | None = None) -> list[nn.Module]:
    """Return four blocks of modules that all methods take.

    Args:
        width: hidden features of four equal dense blocks, beside which heads and bridges weigh
            little; None: two convolutions, a dense block and a linear head.
    """
    torch.manual_seed(seed)
    if width is not None:
        inputs = data.train.x[0].numel()
        blocks = [_dense(width) for _ in range(BLOCKS)]
        blocks[0] = nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ELU(), *blocks[0])
        blocks[-1].append(nn.Linear(width, data.num_classes))
        return [*blocks]
    channels, side = data.train.x.shape[1], data.train.x.shape[2] // 4
    return [
        nn.Sequential(nn.Conv2d(channels, 16, 3, padding=1), nn.ELU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ELU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(32 * side * side, 64), nn.ELU()),
        nn.Linear(64, data.num_classes),
    ]


def _dense(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.ELU(), nn.Linear(width, width), nn.ELU())


def fitted(
    name: str, data: DataSet, seed: int, lr: float, *, width: int | None = None, **options: Any
) -> Record:
    """Train a row's method on the network; options are those of `alkit.fit`."""
    row = ROWS[name]
    asked = {"method": row.method, "lr": lr, "seed": seed, "progress": False, **row.options}
    return alkit.fit(network(data, seed, width), data, **asked | options)


def validated(name: str, data: DataSet, seed: int, lr: float, **options: Any) -> float:
    """Return the best validation accuracy of a row at a rate; 0 where it diverges."""
    try:
        found = fitted(name, data, seed, lr, **options)
    except (FloatingPointError, RankFailed):
        return 0.0
    return float(found.history.val_acc.max())


def payload(data: DataSet, batch: int, width: int | None = None) -> list[int]:
    """Return the bytes of a batch that cross each border between blocks."""
    part = data.train.take(torch.arange(batch))
    x, _ = next(iter(part.batches(batch, shuffle=False)))
    found = []
    with torch.no_grad():
        for block in network(data, 0, width):
            x = block(x)
            found.append(x.numel() * x.element_size())
    return found[:-1]


def sent_bytes(name: str, crossing: Sequence[int], batch: int) -> int:
    """Return the bytes that a batch sends between devices, by the data edges of the schedule."""
    schedule, total = ROWS[name].schedule(), 0
    parts = 1 + max(micro for _, _, micro in schedule.places)
    code = 4 * LEARNED.code_dim * batch if schedule.name == "al_pipeline" else 0
    two = schedule.stages == 2
    for lane in range(schedule.lanes):
        for task in schedule.one_batch(lane):
            for edge in schedule.edges(task):
                if edge.kind == "data" and edge.task.stage != task.stage:
                    border = 1 if two else min(edge.task.stage, task.stage)
                    total += (crossing[border] + code) // parts
    return total


def task_s(name: str, record: Record, backprop: Timeline) -> dict[tuple[str, int], float]:
    """Return the seconds of a row's tasks on four devices.

    Args:
        record: of a run in one worker, whose stages are the blocks where the method has such.
        backprop: of naive sequential training, a block a stage.
    """
    base = backprop.task_s()
    if name in ("bp", "1f1b", "elastic"):
        return base
    if name == "pipelearn":
        halves: dict[tuple[str, int], float] = defaultdict(float)
        for (kind, block), seconds in base.items():
            halves[kind, block // 2] += seconds
        return dict(halves)
    assert record.timeline is not None
    own = record.timeline.task_s()
    if name == "dtp":
        return own
    top = max(stage for _, stage in own)  # AL has no head: its last layer stands for two blocks
    return {(kind, block): own[kind, min(block, top)] for kind, _ in own for block in range(BLOCKS)}


def on_clock(name: str, seconds: Mapping[tuple[str, int], float]) -> Timeline:
    """Run a row's schedule in virtual time: four devices, or a device and a server."""
    schedule = ROWS[name].schedule()
    parts = 1 + max(micro for _, _, micro in schedule.places)

    def duration(task: Task) -> float:
        if task.kind == "send":
            return 0.0
        own = seconds[task.kind, task.stage]
        return own if task.kind == "update" else own / parts

    return simulate(schedule, duration, SHOWN)


def of_schedule(name: str) -> dict[str, Any]:
    """Return what a row's schedule says by itself: staleness, batches held, waits removed."""
    schedule = ROWS[name].schedule()
    removed = removed_locks(schedule)
    return {
        "staleness": max(validate(schedule).staleness),
        **{f"waits {lock}": lock not in removed for lock in LOCKS},
    }


def devices(name: str) -> int:
    """Return how many devices a row's schedule has: one a stage."""
    return ROWS[name].schedule().stages


def idle_of(timeline: Timeline, workers: int = 2) -> float:
    """Return the share of so many workers' time in which nothing is computed."""
    busy = sum(i.end_s - i.start_s for i in timeline.intervals if i.kind not in ("send", "receive"))
    return max(0.0, 1 - busy / (workers * timeline.span_s)) if timeline.span_s else 0.0


def step_times(names: Sequence[str], data: DataSet, repeats: int, **options: Any) -> pd.DataFrame:
    """Train every row on two cores, interleaved; return name, step_s and idle share, a row each.

    Args:
        data: a few batches.
        options: of `alkit.fit`.
    """
    rows = []
    for _ in tqdm(range(repeats), desc="rounds", leave=False):
        for name in names:
            ways = [ROWS[name].workers, *([{}] if name == "bp" else [])]  # its faster one counts
            lines = [fitted(name, data, 0, RATE, **way, **options).timeline for way in ways]
            line = min(filter(None, lines), key=lambda each: each.step_s)
            rows.append({"name": name, "step_s": line.step_s, "idle": idle_of(line)})
    return pd.DataFrame(rows)


def costs(
    names: Sequence[str], data: DataSet, *, width: int | None = None, **options: Any
) -> dict[str, dict[tuple[str, int], float]]:
    """Return seconds by (kind, block) of every row, measured in one worker with a block a stage."""
    alone = {"workers": 1, "cuts": list(range(1, BLOCKS))}
    blocks = network(data, 0, width)
    naive = alkit.fit(blocks, data, method="seq", progress=False, **alone, **options)
    assert naive.timeline is not None
    found = {}
    for name in names:
        family = alkit.METHODS[ROWS[name].method].family
        own = alone if family == "delayed" else {"workers": 1} if family in ("al", "local") else {}
        needs = family in ("al", "local", "dtp") or name in ("ddg", "fr", "pipedream")
        record = fitted(name, data, 0, RATE, width=width, **own, **options) if needs else naive
        found[name] = task_s(name, record, naive.timeline)
    return found
