"""What a run of split learning is told: by `alkit.fit`, or by a file for programs."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from alkit.split.methods import METHODS, TABLE, Method
from alkit.split.networks import NETWORKS

ALL = -1  # a cut: all units on the device
MIRRORLESS = ("mnist", "svhn", "digits")  # a digit in a mirror is another sign
CHOICES = {
    "method": METHODS,
    "augment": ("none", "weak"),
    "model": NETWORKS,
    "data": ("cifar10", "mnist", "svhn", "digits"),
    "norm": ("batch", "group"),
}
# the least of each number, and what it is below
RANGES = dict.fromkeys(("devices", "epochs", "batch", "threads", "least"), (1.0, math.inf))
RANGES |= dict.fromkeys(("lr", "data_size", "test_size", "profile"), (0.0, math.inf))
RANGES |= dict.fromkeys(("uplink_mbit", "downlink_mbit"), (0.0, math.inf))
RANGES |= {"aggregate_every": (-1.0, math.inf), "momentum": (0.0, 1.0), "port": (1.0, 65535.0)}


class ConfigError(ValueError):
    """Settings or a configuration that can't be used; says which key, and what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all parties agree on.

    Attributes:
        method: of `METHODS`.
        devices: among which the samples are dealt; `alkit.fit` calls them workers.
        cuts: units on a device, one number for all of them or one each; -1: all units; without
            any: one unit, where the method leaves a choice.
        micro: micro-batches of an iteration, likewise.
        epochs, batch: as a device counts them: samples are its own.
        aggregate_every: iterations; -1 once an epoch of the device, 0 once at the end.
        lr, momentum: of SGD, on both sides.
        seed: of shares, order, augmentation and dropout.
        augment: "none" or "weak" (crop and flip).
        drop_last: each device leaves a last, smaller batch of an epoch out.
        threads: operator threads of each device, and of the server for each.
        data_size: samples of each device; 0: all, shared out.
        profile: on ranks, iterations by which each machine's units are timed before the start;
            cuts and micro-batches are then chosen. 0: they are as given.
        uplink_mbit, downlink_mbit: the links' speeds, for the choice.
        events: on ranks, a table (CSV) of what all lanes did, written round by round.
        units: of the network; 0: not known yet, and nothing is said of cuts.
        least: samples that a micro-batch must have; 2 where BatchNorm stands.
    """

    method: str = "pipelearn"
    devices: int = 2
    cuts: tuple[int, ...] = ()
    micro: tuple[int, ...] = (1,)
    epochs: int = 1
    batch: int = 100
    aggregate_every: int = -1
    lr: float = 0.01
    momentum: float = 0.9
    seed: int = 1994
    augment: str = "none"
    drop_last: bool = False
    threads: int = 1
    data_size: int = 0
    profile: int = 0
    uplink_mbit: float = 0.0
    downlink_mbit: float = 0.0
    events: str = ""
    units: int = 0
    least: int = 1

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "cuts", self._each(self.cuts))
        object.__setattr__(self, "micro", self._each(self.micro))
        if min(self.cuts, default=0) < ALL:
            raise ConfigError(f"cuts is {list(self.cuts)}: give -1 (all units) or more")
        if min(self.micro) < 1:
            raise ConfigError(f"micro is {list(self.micro)}: each must be at least 1")
        if not self.rules.pipelined and max(self.micro) > 1:
            raise ConfigError(f"{self.method} has one micro-batch: several are for pipelearn")
        if self.profile and not (self.rules.pipelined and self.uplink_mbit and self.downlink_mbit):
            raise ConfigError(
                "profile is given, which chooses pipelearn's cuts by the speeds of links: give that"
                " method, uplink_mbit and downlink_mbit"
            )
        if self.units:
            self._check_cuts()

    @property
    def rules(self) -> Method:
        """What the method allows."""
        return TABLE[self.method]

    def plain(self) -> dict[str, Any]:
        """Return what all parties must agree on, as JSON can hold it; where to write is not."""
        told = {key: value for key, value in asdict(self).items() if key != "events"}
        return {key: list(own) if isinstance(own, tuple) else own for key, own in told.items()}

    def _check(self) -> None:
        """Compare types, words and numbers with what they may be."""
        for each in fields(self):
            name, wanted, value = each.name, each.type, getattr(self, each.name)
            if wanted is float and type(value) is int:
                object.__setattr__(self, name, float(value))
            elif isinstance(wanted, type) and type(value) is not wanted:
                raise ConfigError(f"{name} is {value!r}, which is no {wanted.__name__}")
            if name in CHOICES and value not in CHOICES[name]:
                raise ConfigError(f"{name} is {value!r}: give {', '.join(CHOICES[name])}")
            least, most = RANGES.get(name, (-math.inf, math.inf))
            if name in RANGES and not least <= value < most:
                limit = "finite" if most == math.inf else f"below {most:g}"
                raise ConfigError(f"{name} is {value}: it must be at least {least:g}, and {limit}")

    def _check_cuts(self) -> None:
        allowed = self.rules.cuts(self.units)
        cuts = self.cuts or (allowed[min(1, len(allowed) - 1)],) * self.devices
        object.__setattr__(self, "cuts", tuple(self.units if c == ALL else c for c in cuts))
        if bad := [cut for cut in self.cuts if cut not in allowed]:
            least, most = allowed[0], allowed[-1]
            said = f"{least} to {most}" if least < most else f"{least} for {self.method}"
            raise ConfigError(f"cut {bad[0]} of {self.units} units: give {said}")

    def _each(self, values: int | Sequence[int]) -> tuple[int, ...]:
        """Return a value a device; a single one is for all."""
        values = (values,) if isinstance(values, int) else tuple(values)
        if len(values) == 1:
            return values * self.devices
        if values and len(values) != self.devices:
            raise ConfigError(
                f"{list(values)} for {self.devices} devices: a network is split once, give one"
                " number, or one a device"
            )
        return values


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """A run by a file.

    Attributes:
        name: of the experiment, in results.
        server_address, port: where the server and its devices meet, and the port behind it as well.
            Nothing is encrypted, and who connects is believed: name no address outside a private
            network.
        data, test_size: the set, and how many of its test samples count (0: all).
        model, norm: network, and "batch" or "group".
        validate, test: accuracy of the averaged network after each round on samples held out of
            training, and at the end on the test part.
        folder: for results.
    """

    name: str = "experiment"
    server_address: str = "127.0.0.1"
    port: int = 50000
    devices: int = 1
    data: str = "cifar10"
    test_size: int = 0
    model: str = "VGG5"
    norm: str = "batch"
    augment: str = "weak"
    validate: bool = False
    test: bool = True
    folder: str = "runs/split"

    def __post_init__(self) -> None:
        if self.data in MIRRORLESS:
            object.__setattr__(self, "augment", "none")
        super().__post_init__()
