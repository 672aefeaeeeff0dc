"""Who runs in the race: the ways to train a stack that a user could pick, each at its best.

    one process    al, bp                    one operator thread, or all cores ("N threads")
    threads        al_pipeline, free         free workers; al_fm: a thread a layer, or N workers
    torch's own    1f1b, gpipe, ddp          ranks; the best cut and number of micro-batches
    backprop's     1f1b, free                the same schedule, a stage a block, on free workers

All train the same blocks on the same batches and cores. Compare them after fill (`steady_s`):
ranks set up their libraries in the first batches.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch.nn.functional as F

from alkit.delayed.modules import Pipeline
from alkit.delayed.train import train_epoch
from alkit.engine.costs import backprop_costs, backprop_stages, balanced_cuts
from alkit.engine.device import cores
from alkit.engine.optimizers import adam
from alkit.engine.trainer import Trained
from studies.common import torch_pipelines
from studies.common.stacks import Stack
from studies.common.timing import Contenders

# by the name that the tables show; "N" is the number of cores
NAMES = (
    "al",
    "al_pipeline, free",
    "al_fm",
    "al_fm, N workers",
    "bp",
    "al, N threads",
    "bp, N threads",
    "1f1b",
    "1f1b, free",
    "gpipe",
    "ddp",
)


def contenders(
    stack: Stack, names: Sequence[str] = NAMES, micro: Sequence[int] = (2, 4, 8, 16)
) -> Contenders:
    """Return, by name, functions that train the stack anew and return the record.

    Cuts are balanced by costs that are measured now; pipelines of backprop are tried now with each
    number of micro-batches, and the fastest is taken.

    Args:
        names: of NAMES.
        micro: numbers of micro-batches to try.
    """
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise ValueError(f"unknown contenders {unknown}: give some of {', '.join(NAMES)}")
    count = cores()
    made: dict[str, Callable[[], Trained]] = {
        "al_pipeline, free": partial(stack.train, "al_pipeline", workers=count),
        "al_fm, N workers": partial(stack.train, "al_fm", workers=max(2, count)),
        "al, N threads": partial(stack.train, "al", threads=count),
        "bp, N threads": partial(stack.train, "bp", threads=count),
        "ddp": partial(torch_pipelines.data_parallel, stack, ranks=count),
    }
    made |= {mode: partial(stack.train, mode) for mode in ("al", "al_fm", "bp")}
    pipelines: dict[str, Callable[..., Trained]] = {"1f1b, free": partial(free_1f1b, stack)}
    for schedule in {"1f1b", "gpipe"} & {*names}:
        options = {"schedule": schedule, "cuts": best_cuts(stack, count)}
        pipelines[schedule] = partial(torch_pipelines.torch_pipeline, stack, **options)
    for name in pipelines.keys() & {*names}:
        best = fastest_micro(pipelines[name], micro, stack.texts)
        made[name] = partial(pipelines[name], micro=best)
    return {name.replace("N", str(count)): made[name] for name in names}


def best_cuts(stack: Stack, groups: int) -> list[int]:
    """Return the cuts of backprop's blocks with the shortest step."""
    model = stack.model("bp")
    stages = backprop_stages(model, model.loss_fn, adam)
    costs = backprop_costs(stages, islice(stack.stream(), 8), warmup=1)
    return balanced_cuts([sum(each) for each in costs], groups)


def free_1f1b(stack: Stack, micro: int) -> Trained:
    """Train the BP twin with 1F1B, a stage a block, on a free worker a core."""
    model = stack.model("bp")
    pipeline = Pipeline(model, F.cross_entropy, range(1, len(list(model))), partial(adam, lr=1e-3))
    batches, options = list(stack.stream()), {"micro": micro, "workers": cores()}
    return train_epoch(pipeline, batches, "1f1b", "threads", **options)


def fastest_micro(train: Callable[..., Any], choices: Sequence[int], texts: int) -> int:
    """Return the number of micro-batches with which `train(micro=...)` is fastest."""
    allowed = [micro for micro in choices if texts % micro == 0]
    if not allowed:
        raise ValueError(f"none of {list(choices)} divides a batch of {texts}")
    if len(allowed) == 1:
        return allowed[0]
    steps = {micro: train(micro=micro).timeline.steady_s for micro in allowed}
    return min(steps, key=steps.__getitem__)
