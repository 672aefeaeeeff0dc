"""All methods by name: whose they are, which executors run them, which of backprop's waits go.

>>> import alkit
>>> alkit.METHODS["al_pipeline"].removes
('backward', 'update', 'weights')
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module

from alkit.delayed import schedules as delayed
from alkit.delayed.methods import METHODS as DELAYED
from alkit.schedule.flushed import one_f_one_b
from alkit.schedule.locks import removed_locks
from alkit.schedule.targets import target_propagation
from alkit.schedule.task import Schedule, al, al_fm, al_m, al_pipeline, block_by_block
from alkit.split.methods import TABLE as SPLIT
from alkit.split.schedule import split

__all__ = ["METHODS", "Method"]

STAGES = 3  # of the schedules that are looked at


@dataclass(frozen=True)
class Method:
    """A method as `alkit.fit` knows it.

    Attributes:
        name: as in `method=`.
        family: "al", "local" (which lives in the room al), "delayed", "split", "elastic" or "dtp".
        executors: that `executor=` may name; ranks are also started by `ranks=`.
        settings: where what else it takes is written down.
        schedule: of three stages, of split learning of its two, of target propagation of a worker a
            block.
    """

    name: str
    family: str
    executors: tuple[str, ...]
    settings: str
    schedule: Callable[[], Schedule] = field(repr=False)

    @property
    def room(self) -> str:
        """The package's folder that holds it."""
        return "al" if self.family == "local" else self.family

    @cached_property
    def removes(self) -> tuple[str, ...]:
        """Which of backprop's waits it removes, see `alkit.schedule.locks`."""
        return removed_locks(self.schedule())


def _all() -> list[Method]:
    al_modes = {"bp": block_by_block, "al": al, "al_m": al_m, "al_fm": al_fm}
    own = [
        Method(name, "al", ("threads",), "alkit.to_al", partial(made, STAGES))
        for name, made in al_modes.items()
    ]
    pipeline = partial(al_pipeline, STAGES)
    own.append(Method("al_pipeline", "al", ("threads", "ranks"), "alkit.to_al", pipeline))
    own += [
        Method("local", "local", ("threads",), "alkit.to_local", partial(al, STAGES)),
        Method("local_pipeline", "local", ("threads", "ranks"), "alkit.to_local", pipeline),
    ]
    everywhere = ("single", "threads", "ranks")
    for name, each in DELAYED.items():
        made = partial(delayed.schedule_for, name, STAGES, STAGES if each.accumulates else 1)
        own.append(Method(name, "delayed", everywhere, "alkit.delayed.options.Options", made))
    settings = "alkit.split.Settings"
    own += [
        Method(name, "split", (), settings, partial(split, 4 if each.pipelined else 1))
        for name, each in SPLIT.items()
    ]
    made = partial(one_f_one_b, STAGES, STAGES)
    own.append(Method("elastic", "elastic", everywhere, "alkit.elastic.Settings", made))
    for name in ("dtp", "vanilla_dtp", "tp", "ddtp"):
        made = partial(target_propagation, STAGES, direct=name == "ddtp")
        where = everywhere[:2] if name == "ddtp" else everywhere
        own.append(Method(name, "dtp", where, "alkit.dtp.Settings", made))
    return own


class Methods(dict[str, Method]):
    """The methods by name; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        return import_module("alkit.figures.show").methods_page(self)


METHODS = Methods((method.name, method) for method in _all())
