"""Settings of a run of split learning: from `alkit.fit`, or from a file for programs.

method       cut          micro    tail
central      0            1        one a device
fed          all units    -        none            (FedAvg)
splitfed     any          1        one a device    (SplitFed v1)
pipelearn    any          N        one a device
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, NamedTuple

from alkit.split.networks import NETWORKS


class Method(NamedTuple):
    """The limits of one published system."""

    cut: Literal["none", "any", "all"] = "any"  # number of units on the device
    pipelined: bool = False  # an iteration may have several micro-batches

    def cuts(self, units: int) -> range:
        """Return the numbers of units that a device may have, of `units` in all."""
        return range(units * (self.cut == "all"), 1 + units * (self.cut != "none"))


TABLE = {
    "central": Method(cut="none"),
    "fed": Method(cut="all"),
    "splitfed": Method(),
    "pipelearn": Method(pipelined=True),
}
METHODS = tuple(TABLE)
ALL = -1  # a cut: all units on the device
CHOICES = {
    "method": METHODS,
    "augment": ("none", "weak"),
    "model": NETWORKS,
    "data": ("cifar10", "mnist", "svhn", "digits"),
    "norm": ("batch", "group"),
}
# the least of each number, where it isn't 0
LEAST = dict.fromkeys(("devices", "micro", "epochs", "batch", "threads", "least", "port"), 1.0)
LEAST |= {"aggregate_every": -1.0, "seed": -math.inf}
MOST = {"devices": 1_000, "threads": 1_024, "port": 65_534, "seed": math.inf}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of all parties. Epochs and batches are as a device counts its own samples."""

    method: str = "pipelearn"  # of `METHODS`
    devices: int = 2  # they share the samples; `alkit.fit` calls them workers
    cuts: tuple[int, ...] = ()  # [units on a device]; -1: all; default one, if there is a choice
    micro: int = 1  # micro-batches of an iteration
    epochs: int = 1
    batch: int = 100
    aggregate_every: int = -1  # iterations; -1 once an epoch of the device, 0 once at the end
    lr: float = 0.01  # of both sides
    seed: int = 1994  # of shares, order, augmentation and dropout
    augment: str = "none"  # or "weak": crop and flip
    drop_last: bool = False  # each device leaves a last, smaller batch of an epoch out
    threads: int = 1  # operator threads of each device, and of the server for each
    data_size: int = 0  # samples of each device; 0: all, shared out
    # on ranks, iterations that time the units of each machine before the start; cuts and
    # micro-batches are then chosen, by the speeds of links; 0: they are as given
    profile: int = 0
    uplink_mbit: float = 0.0
    downlink_mbit: float = 0.0
    events: str = ""  # on ranks, a table (CSV) of the tasks of all lanes, written round by round
    units: int = 0  # of the network; 0: not known yet, and nothing is said of cuts
    least: int = 1  # samples that a micro-batch must have; 2 where BatchNorm stands

    def __post_init__(self) -> None:
        for each in fields(self):
            self._check(each.name, each.type)
        cuts = (self.cuts,) if isinstance(self.cuts, int) else tuple(self.cuts)
        if len(cuts) > 1 or min(cuts, default=0) < ALL:
            said = f"a network is split once, give one number, at least {ALL}"
            raise ValueError(f"cuts is {list(cuts)}: {said}")
        if not self.rules.pipelined and self.micro > 1:
            raise ValueError(f"{self.method} has one micro-batch: several are for pipelearn")
        if self.profile and not (self.rules.pipelined and self.uplink_mbit and self.downlink_mbit):
            said = "give method='pipelearn', uplink_mbit and downlink_mbit"
            raise ValueError(f"profile is given, and chooses cuts by the speeds of links: {said}")
        if self.units:
            allowed = self.rules.cuts(self.units)
            [cut] = cuts or [allowed[min(1, len(allowed) - 1)]]
            cuts = (self.units if cut == ALL else cut,)
            if cuts[0] not in allowed:
                said = f"{allowed[0]} to {allowed[-1]}" if len(allowed) > 1 else f"{allowed[0]}"
                raise ValueError(f"cut {cut} of {self.units} units: give {said} for {self.method}")
        self._set("cuts", cuts)

    @property
    def cut(self) -> int:
        """How many units are on a device."""
        return self.cuts[0]

    @property
    def rules(self) -> Method:
        """The limits of the method."""
        return TABLE[self.method]

    def plain(self) -> dict[str, Any]:
        """Return the settings that all parties must share, for JSON; paths are left out."""
        told = {key: value for key, value in asdict(self).items() if key != "events"}
        return {key: list(own) if isinstance(own, tuple) else own for key, own in told.items()}

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check(self, name: str, wanted: Any) -> None:
        """Compare a type, word or number with its allowed values."""
        value = getattr(self, name)
        if wanted is float and type(value) is int:
            self._set(name, float(value))
        elif isinstance(wanted, type) and type(value) is not wanted:
            raise ValueError(f"{name} is {value!r}, which is no {wanted.__name__}")
        if name in CHOICES and value not in CHOICES[name]:
            raise ValueError(f"{name} is {value!r}: give {', '.join(CHOICES[name])}")
        least, most = LEAST.get(name, 0.0), MOST.get(name, 1e9)
        if wanted in (int, float) and not least <= value <= most:
            raise ValueError(f"{name} is {value}: it must be at least {least:g}, at most {most:g}")


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """A run by a file.

    Nothing is encrypted, and any peer is believed: name no address outside a private network.
    """

    name: str = "experiment"  # in results
    server_address: str = "127.0.0.1"
    port: int = 50000  # where the server and its devices meet, and the one behind it as well
    devices: int = 1
    data: str = "cifar10"
    test_size: int = 0  # test samples that count; 0: all
    model: str = "VGG5"
    norm: str = "batch"  # or "group"
    augment: str = "weak"  # of CIFAR-10 only: another set's digit in a mirror is another sign
    validate: bool = False  # accuracy after each round on samples held out of training
    test: bool = True  # accuracy at the end on the test part
    folder: str = "runs/split"  # for results

    def __post_init__(self) -> None:
        if self.data != "cifar10":
            self._set("augment", "none")
        super().__post_init__()
