"""How long N batches take on K balanced modules: closed forms, for the clock to be checked with.

f, b seconds of one module's forward and backward, a fresh pipeline that is emptied at the end, no
communication, updates for nothing. A forward that is run again belongs to the backward; the last
module has none. T_F + T_B / K of the published table is `ddg_barrier`'s cycle K f + b; its line for
FR leaves out the forward that is run again.
"""

from alkit.delayed.methods import METHODS
from alkit.schedule.task import Task


def durations(method: str, stages: int, f: float, b: float):
    """Return the seconds of a task, for `alkit.schedule.clock.simulate`; updates take none."""
    again = METHODS[method].runs_again

    def seconds(task: Task) -> float:
        if task.kind == "update":
            return 0.0
        if task.kind == "forward":
            return f
        return b + f if again and task.stage < stages - 1 else b

    return seconds


def cycle_s(method: str, stages: int, f: float, b: float) -> float:
    """Return the seconds that a batch takes once the pipeline is full."""
    k = stages
    again = METHODS[method].runs_again and k > 1
    back = b + f if again else b
    match METHODS[method].order:
        case "seq":
            return k * (f + b)
        case "barrier":
            return k * f + back
        case "gradient_first" if k == 1:
            return f + b
        case "gradient_first":
            return 2 * f + back if not again or k > 2 else 2 * f + b
        case "1f1b" if not METHODS[method].accumulates:
            return f + back
    raise ValueError(f"{method} flushes or accumulates: simulate it")


def makespan_s(method: str, stages: int, batches: int, f: float, b: float) -> float:
    """Return the seconds of N batches, from the first forward to the last backward."""
    k, n = stages, batches
    if n < k:
        raise ValueError(f"{n} batches for {k} stages: the closed forms need as many")
    again = METHODS[method].runs_again
    cycle = cycle_s(method, k, f, b)
    order = METHODS[method].order
    if order == "seq" or k == 1:
        return n * cycle
    if order == "barrier":
        if again:
            return n * k * f + b + (n + k - 2) * (f + b)
        return n * cycle + (k - 1) * b
    if order == "gradient_first":
        if not again:
            return (n - 1) * cycle + k * (f + b)
        if k == 2:
            raise ValueError("fr with two modules has no closed form here: simulate it")
        return (n - 1) * cycle + k * (2 * f + b) - 2 * f
    return (n + k - 1) * cycle - (2 * f if again else 0)
