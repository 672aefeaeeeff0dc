"""What tasks run on in virtual time: plain data that `alkit.schedule.clock` reads.

A resource runs the first tasks of its line, each at a pace; a machine says which one a task needs.
`equal_cores` is for workers that share nothing but cores.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from alkit.schedule.task import Task

__all__ = ["Machine", "Need", "Resource", "equal_cores"]


class Resource(NamedTuple):
    """What runs tasks.

    Attributes:
        places: tasks that run at the same time, first come first served; None for any number.
        pace: the speed of each of so many that run, 1 for one that has the resource for itself.
    """

    places: int | None = 1
    pace: Callable[[int], float] = lambda running: 1.0


class Need(NamedTuple):
    """What a task runs on, by name; what is busy beside it till it ends; what it waits for."""

    resource: str
    busy: str | None = None
    idle: str | None = None


@dataclass(frozen=True)
class Machine:
    """What a schedule runs on.

    Attributes:
        resources: by name; what isn't named runs one task at a time.
        need: of a task.
        turn: tasks that may start at the same moment do so in this order; default first come
            first served.
        moment_s: what ends within it ends at the same moment; more than rounding, where work at a
            changing pace ends.
    """

    resources: Mapping[str, Resource]
    need: Callable[[Task], Need]
    turn: Callable[[Task], tuple[int, ...]] = lambda task: ()
    moment_s: float = 0.0


def equal_cores(count: int) -> Machine:
    """Run at most `count` tasks at a time: L + 1 threads on a two-core machine, say."""
    return Machine({"cores": Resource(count)}, lambda task: Need("cores"))
