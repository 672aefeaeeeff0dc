"""List all methods by name, with their families, waits, costs and settings.

>>> import alkit
>>> alkit.METHODS["al_pipeline"].removes
('backward', 'update', 'weights')
>>> print(alkit.METHODS["pipedream"].waits_for, "|", alkit.METHODS["pipedream"].costs)
('forward', 'backward', 'weights') | gradients of old weights, whose versions are kept
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module

from alkit.delayed import schedules as delayed
from alkit.delayed.methods import METHODS as DELAYED
from alkit.schedule.flushed import block_by_block, one_f_one_b
from alkit.schedule.locks import LOCKS, removed_locks
from alkit.schedule.targets import target_propagation
from alkit.schedule.task import Schedule, al, al_fm, al_m, al_pipeline
from alkit.split.schedule import split
from alkit.split.settings import TABLE as SPLIT

STAGES = 3  # of the schedules that are looked at
OLD, REPLAYED = "gradients of old weights", "old gradients through new weights, a forward replayed"
COSTS = {
    "bp": "nothing more: what all others are compared with",
    **dict.fromkeys(
        ("al", "al_m", "al_fm", "al_pipeline"),
        "a bridge and label codes a block, and what a gradient from above would add",
    ),
    **dict.fromkeys(
        ("local", "local_pipeline"), "a head a block, and what a gradient from above would add"
    ),
    "seq": "idle workers: one module at a time",
    "ddg": f"{OLD}, whose graphs are kept",
    "ddg_barrier": f"{OLD}, whose graphs are kept; all wait for the slowest",
    **dict.fromkeys(("fr", "fr_1f1b"), REPLAYED),
    "fr_barrier": f"{REPLAYED}; all wait for the slowest",
    "pipedream": f"{OLD}, whose versions are kept",
    "pipedream_recompute": f"{OLD}, whose versions are kept, and a forward run again",
    "pipedream_sync": f"{OLD}, as old in all modules",
    "ddg_inplace": "gradients of no function: to be looked at",
    "pipedream_inplace": "gradients of no function: to be looked at",
    "2bw": "gradients one update old, and two versions of the weights",
    "gpipe": "idle workers at both ends of a batch, and the graphs of all micro-batches",
    "1f1b": "idle workers at both ends of a batch",
    "zero_bubble": "backwards in two halves, and as many graphs on all workers as on the first",
    "interleaved_1f1b": "idle workers, fewer; and links that a batch crosses several times",
    "looped_bfs": "idle workers, fewer; and the graphs of all micro-batches",
    "zbv": "backwards in two halves; and links that a batch crosses there and back",
    "dualpipev": "backwards in two halves, a graph more a worker; and links there and back",
    "central": "a link that all samples cross, and what the device could have computed",
    "fed": "the whole network on every device, and weights averaged once a round",
    "splitfed": "a link that features cross, and weights averaged once a round",
    "pipelearn": "a link that features cross, and weights averaged once a round",
    "elastic": "idle workers at both ends of a batch; layers that stop learning",
    **dict.fromkeys(
        ("dtp", "vanilla_dtp", "tp"), "a feedback map a block, trained for some iterations a batch"
    ),
}


@dataclass(frozen=True)
class Method:
    """A method as `alkit.fit` knows it.

    Attributes:
        name: as in `method=`.
        family: "al", "local" (which lives in the room al), "delayed", "split", "elastic" or "dtp".
        schedule: with three stages; of split learning with its two, of target propagation with a
            worker a block.
    """

    name: str
    family: str
    schedule: Callable[[], Schedule] = field(repr=False)

    @property
    def room(self) -> str:
        """The folder of the package that holds it."""
        return "al" if self.family == "local" else self.family

    @property
    def settings(self) -> type:
        """The dataclass of the settings that it takes besides the arguments of `alkit.fit`."""
        found: type = import_module(f"alkit.{self.room}.fit").settings_of(self.name)
        return found

    @cached_property
    def removes(self) -> tuple[str, ...]:
        """The waits of backprop that it removes, see `alkit.schedule.locks`."""
        return removed_locks(self.schedule())

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The waits of backprop that are left."""
        return tuple(lock for lock in LOCKS if lock not in self.removes)

    @property
    def costs(self) -> str:
        """Its costs, in words; numbers are in README and RESULTS."""
        return COSTS[self.name]


def _all() -> list[Method]:
    modes = {"bp": block_by_block, "al": al, "al_m": al_m, "al_fm": al_fm}
    modes |= {"al_pipeline": al_pipeline, "local": al, "local_pipeline": al_pipeline}
    families = {name: "local" if name.startswith("local") else "al" for name in modes}
    own = [Method(name, families[name], partial(each, STAGES)) for name, each in modes.items()]
    for name, each in DELAYED.items():
        stages = STAGES + (name in delayed.SHARED)  # two for each of two workers
        made = partial(delayed.schedule_for, name, stages, stages if each.accumulates else 1)
        own.append(Method(name, "delayed", made))
    for name, row in SPLIT.items():
        own.append(Method(name, "split", partial(split, 4 if row.pipelined else 1)))
    own.append(Method("elastic", "elastic", partial(one_f_one_b, STAGES, STAGES)))
    targets = partial(target_propagation, STAGES)
    return own + [Method(name, "dtp", targets) for name in ("dtp", "vanilla_dtp", "tp")]


class Methods(dict[str, Method]):
    """The methods by name; printed, and in a notebook, they are a table."""

    def __repr__(self) -> str:
        row = "{:20} {:8} {:36} {}".format
        lines = [row(e.name, e.family, ", ".join(e.waits_for), e.costs) for e in self.values()]
        return "\n".join([row("method", "family", "waits for", "costs"), *lines])


METHODS = Methods((method.name, method) for method in _all())
