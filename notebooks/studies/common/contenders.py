"""Who runs in the race: every way to train a stack that a user could pick, each at its best.

    one worker     al, bp                      one operator thread, or all cores
    as published   al_fm                       a thread a layer, or as many workers as cores
    ours           al_pipeline                 free workers; layers cut among threads, or ranks
    torch's own    1f1b, gpipe, ddp            ranks; the best cut and number of micro-batches
    backprop's     1f1b, free                  the same schedule, a stage a block, on free workers

All train the same blocks on the same batches and cores. Compare them after fill (`steady_s`):
ranks set up their libraries in the first batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import torch.distributed as dist
import torch.nn.functional as F

from alkit.delayed.modules import Pipeline
from alkit.delayed.train import train_epoch
from alkit.engine.costs import balanced_cuts
from alkit.engine.device import cores
from alkit.engine.launch import launch
from alkit.engine.optimizers import adam
from alkit.engine.trainer import Trained
from studies.al.profile import Cost
from studies.common import torch_pipelines
from studies.common.stacks import Stack
from studies.common.timing import Contenders

# by the name that the tables show; "N" is the number of cores
NAMES = (
    "al",
    "al_pipeline, free",
    "al_pipeline, cut",
    "al_pipeline, a thread a layer",
    "al_pipeline, ranks",
    "al_fm",
    "al_fm, N workers",
    "bp",
    "al, N threads",
    "bp, N threads",
    "1f1b",
    "1f1b, free",
    "gpipe",
    "ddp",
    "simulated, cut",
    "simulated, ranks",
    "ideal",
)


def contenders(
    stack: Stack, names: Sequence[str] = NAMES, micro: Sequence[int] = (2, 4, 8, 16)
) -> Contenders:
    """Return, by name, functions that train the stack anew and return the record.

    Cuts are balanced by costs that are measured now, with all cores at work; so are torch's
    pipelines tried now with each number of micro-batches, and the fastest is taken. Clocks and
    the ideal don't train: from costs measured in that round, clocks predict what al_pipeline should
    take, and the ideal is what cores take that never wait.

    Args:
        names: of NAMES.
        micro: numbers of micro-batches to try.
    """
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise ValueError(f"unknown contenders {unknown}: give some of {', '.join(NAMES)}")
    count = cores()
    al_cuts = best_cuts(stack, "al", count)
    made: dict[str, Callable[[], Trained]] = {
        "al_pipeline, free": partial(stack.train, "al_pipeline", workers=count),
        "al_pipeline, cut": partial(stack.train, "al_pipeline", cuts=al_cuts),
        "al_pipeline, ranks": partial(on_ranks, stack, al_cuts),
        "al_pipeline, a thread a layer": partial(stack.train, "al_pipeline", workers=stack.layers),
        "al_fm, N workers": partial(stack.train, "al_fm", workers=max(2, count)),
        "al, N threads": partial(stack.train, "al", threads=count),
        "bp, N threads": partial(stack.train, "bp", threads=count),
        "ddp": partial(torch_pipelines.data_parallel, stack, ranks=count),
        "simulated, cut": partial(stack.predict, al_cuts),
        "simulated, ranks": partial(predicted, stack, al_cuts),
        "ideal": partial(stack.ideal, count),
    }
    made |= {mode: partial(stack.train, mode) for mode in ("al", "al_fm", "bp")}
    for schedule in ("1f1b", "gpipe"):
        if schedule in names:
            bp_cuts = best_cuts(stack, "bp", count)
            train = partial(torch_pipelines.torch_pipeline, schedule=schedule, cuts=bp_cuts)
            made[schedule] = partial(train, stack, micro=fastest_micro(stack, train, micro))
    if "1f1b, free" in names:
        made["1f1b, free"] = partial(free_1f1b, stack, fastest_micro(stack, free_1f1b, micro))
    return {name.replace("N", str(count)): made[name] for name in names}


def best_cuts(stack: Stack, kind: str, groups: int) -> list[int]:
    """Return the cuts of the shortest step, from costs measured with all cores at work."""
    return balanced_cuts([cost.seconds for cost in stack.costs(kind, busy=groups)], groups)


def on_ranks(stack: Stack, cuts: Sequence[int], threads: int = 1) -> Trained:
    """Train with al_pipeline on a rank a worker; return what all of them recorded."""
    return launch(_trained, stack, list(cuts), ranks=len(cuts) + 1, threads=threads)[0]


def free_1f1b(stack: Stack, micro: int) -> Trained:
    """Train the BP twin with 1F1B, a stage a block, on a free worker a core."""
    model = stack.model("bp")
    pipeline = Pipeline(model, F.cross_entropy, range(1, len(list(model))), partial(adam, lr=1e-3))
    batches, options = list(stack.stream()), {"micro": micro, "workers": cores()}
    return train_epoch(pipeline, batches, "1f1b", "threads", **options)


def fastest_micro(stack: Stack, train: Callable[..., Any], choices: Sequence[int]) -> int:
    """Return the number of micro-batches with which `train(stack, micro=...)` is fastest."""
    allowed = [micro for micro in choices if stack.texts % micro == 0]
    if not allowed:
        raise ValueError(f"none of {list(choices)} divides a batch of {stack.texts}")
    if len(allowed) == 1:
        return allowed[0]
    steps = {micro: train(stack, micro=micro).timeline.steady_s for micro in allowed}
    return min(steps, key=steps.__getitem__)


def costs_on_ranks(stack: Stack, ranks: int) -> list[Cost]:
    """Profile the AL layers over all batches, on a rank a core.

    All ranks do so at the same time; the mean over them.
    """
    found = launch(_profiled, stack, ranks=ranks)
    return [_mean(costs) for costs in zip(*found, strict=True)]


def predicted(stack: Stack, cuts: Sequence[int]) -> Trained:
    """Return what al_pipeline should take on ranks: the clock, fed with costs of busy ranks."""
    return stack.predict(cuts, costs_on_ranks(stack, len(cuts) + 1))


def _trained(stack: Stack, cuts: Sequence[int]) -> Trained:
    return stack.train("al_pipeline", cuts=cuts, executor="ranks")


def _profiled(stack: Stack) -> list[Cost]:
    dist.barrier()
    return stack.costs("al", busy=1, batches=stack.batches)


def _mean(costs: Sequence[Cost]) -> Cost:
    """Return the mean times of one block as several ranks have measured it."""
    times = ("forward_s", "backward_s", "update_s")
    means = {name: fmean(getattr(cost, name) for cost in costs) for name in times}
    return replace(costs[0], **means)
