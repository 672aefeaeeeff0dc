"""How long the tasks of balanced modules take, f a forward and b a backward, for the clock.

A forward that is run again belongs to the backward; the last module has none. Updates take nothing.
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
