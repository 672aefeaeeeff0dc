"""What the delayed methods do with K modules and a given forward to backward, as a picture."""

from collections.abc import Callable

import matplotlib.pyplot as plt

from alkit.delayed.methods import METHODS
from alkit.delayed.schedules import schedule_for
from alkit.lab.viz import gantts, label
from alkit.schedule.clock import simulate
from alkit.schedule.task import Task
from studies.delayed.tables import staleness

SHOWN = [name for name, method in METHODS.items() if not method.accumulates]
BATCHES, LONG = 6, 40  # in the picture; for the cycle


def durations(method: str, stages: int, f: float, b: float) -> Callable[[Task], float]:
    """Return the seconds of tasks of balanced modules: forward f, backward b, updates none.

    A forward that is run again belongs to the backward; the last module has none.
    """
    again = METHODS[method].runs_again

    def seconds(task: Task) -> float:
        if task.kind == "update":
            return 0.0
        if task.kind == "forward":
            return f
        return b + f if again and task.stage < stages - 1 else b

    return seconds


def draw(
    method: str = "pipedream", modules: int = 4, forward: float = 1.0, backward: float = 2.0
) -> float:
    """Draw who is busy when; return how long a batch takes once the pipeline is full."""
    seconds, plan = durations(method, modules, forward, backward), schedule_for(method, modules)
    short, long, longer = (simulate(plan, seconds, n) for n in (BATCHES, LONG, 2 * LONG))
    cycle_s, alone_s = (longer.span_s - long.span_s) / LONG, modules * (forward + backward)
    late = staleness(method, modules, modules + 8)
    print(
        f"A batch takes {cycle_s:g} once the pipeline is full, {alone_s / cycle_s:.2f} times as"
        f" fast as seq ({alone_s:g}). Updates that the weights of module 0 lack:"
        f" {late.forward.iloc[0]} in the forward, {late.backward.iloc[0]} in the backward."
    )
    title = f"Simulated: {BATCHES} batches of {label(method)}"
    gantts({f"{modules} modules": short}, title, number="batch")
    plt.show()
    return cycle_s
