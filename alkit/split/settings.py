"""What a run of split learning is, beside network and data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from alkit.split.methods import METHODS, TABLE, Method

# the least of each number and what it is below, of settings and of configurations
ONE = ("devices", "epochs", "batch", "micro", "threads", "least")
ZERO: tuple[str, ...] = ("lr", "join_s", "data_size", "test_size", "profile")
ZERO += ("uplink_mbit", "downlink_mbit")
RANGES = dict.fromkeys(ONE, (1.0, math.inf)) | dict.fromkeys(ZERO, (0.0, math.inf))
RANGES |= dict.fromkeys(("patience_s", "alpha"), (1e-3, math.inf))
RANGES |= {"aggregate_every": (-1.0, math.inf), "momentum": (0.0, 1.0)}
CHOICES = {"method": METHODS, "augment": ("none", "weak")}


class ConfigError(ValueError):
    """Settings or a configuration that can't be used; says which key, and what is allowed."""


def check(own: Any, choices: Mapping[str, Sequence[str]]) -> None:
    """Compare words and numbers of settings, or of a configuration, with what they may be.

    Raises:
        ConfigError: a word that there is not, or a number that is too small, too large or none.
    """
    for name, allowed in choices.items():
        if getattr(own, name) not in allowed:
            raise ConfigError(f"{name} is {getattr(own, name)!r}: give {', '.join(allowed)}")
    for name, (least, most) in RANGES.items():
        value = getattr(own, name, least)
        if not least <= value < most:
            limit = "finite" if most == math.inf else f"below {most:g}"
            raise ConfigError(f"{name} is {value}: it must be at least {least:g}, and {limit}")


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a configuration and the settings of its run say in the same words.

    Attributes:
        epochs, batch: as a device counts them: samples are its own.
        aggregate_every: iterations; -1 once an epoch of the device, 0 once at the end.
        lr, momentum: of SGD, on both sides.
        seed: of weights, order, augmentation and dropout.
        augment: "none" or "weak" (crop and flip).
        threads: operator threads of each device, and of the server for each.
        join_s: seconds that the server waits for a device to come, or to come back.
    """

    epochs: int = 1
    batch: int = 100
    aggregate_every: int = -1
    lr: float = 0.01
    momentum: float = 0.9
    seed: int = 1994
    augment: str = "none"
    threads: int = 1
    join_s: float = 60.0


@dataclass(frozen=True)
class Settings(Training):
    """Numbers that all parties must agree on, beside those of `Training`.

    Attributes:
        units: of the network.
        cuts: for each device, how many units it has itself.
        method: of `METHODS`.
        micros: micro-batches per iteration, for each device.
        least: samples that a micro-batch must have; 2 where BatchNorm stands.
        factors: of the rate, by round; the last one holds for all that follow.
        drop_last: each device leaves a last, smaller batch of an epoch out.
    """

    units: int
    cuts: tuple[int, ...]
    method: str = "pipelearn"
    micros: tuple[int, ...] = field(default=(1,))
    least: int = field(default=1, kw_only=True)
    factors: tuple[float, ...] = field(default=(1.0,), kw_only=True)
    drop_last: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cuts", _each(self.cuts, len(self.cuts)))
        object.__setattr__(self, "micros", _each(self.micros, len(self.cuts)))
        object.__setattr__(self, "factors", tuple(self.factors))
        if not self.factors or not all(0 <= each < math.inf for each in self.factors):
            raise ConfigError(f"factors is {list(self.factors)}: give finite ones, none negative")
        check(self, CHOICES)
        self._check_cuts()

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.cuts)

    @property
    def rules(self) -> Method:
        """What the method allows, and where its tail is."""
        return TABLE[self.method]

    def factor(self, number: int) -> float:
        """Return what the rate is multiplied by in a round, from 0."""
        return self.factors[min(number, len(self.factors) - 1)]

    def plain(self) -> dict[str, Any]:
        """Return the settings as JSON can hold them."""
        found = asdict(self)
        return {name: list(own) if isinstance(own, tuple) else own for name, own in found.items()}

    @staticmethod
    def read(plain: dict[str, Any]) -> "Settings":
        """Return what `plain` gave.

        Raises:
            ConfigError: a setting that there is not, or a value of another type.
        """
        fields = Settings.__dataclass_fields__
        for key, value in plain.items():
            if key not in fields:
                raise ConfigError(f"no setting {key!r}; there are {', '.join(fields)}")
            if key in ("cuts", "micros", "factors"):
                kinds = (int, float) if key == "factors" else (int,)
                right = isinstance(value, list) and all(type(each) in kinds for each in value)
            else:
                wanted = fields[key].type
                right = type(value) is wanted or (wanted is float and type(value) is int)
            if not right:
                raise ConfigError(f"{key} is {value!r}: another type is wanted")
        return Settings(**plain)

    def _check_cuts(self) -> None:
        if not self.cuts:
            raise ConfigError("no devices: give one cut a device")
        allowed = self.rules.cuts(self.units)
        if bad := [cut for cut in self.cuts if cut not in allowed]:
            least, most = allowed[0], allowed[-1]
            said = f"{least} to {most}" if least < most else f"{least} for {self.method}"
            raise ConfigError(f"cut {bad[0]} of {self.units} units: give {said}")
        if min(self.micros) < 1:
            raise ConfigError(f"micros is {list(self.micros)}: each must be at least 1")
        if not self.rules.pipelined and max(self.micros) > 1:
            raise ConfigError(f"{self.method} has one micro-batch: several are for pipelearn")
        if self.rules.shared and (len(set(self.cuts)) > 1 or self.cuts[0] == self.units):
            raise ConfigError(
                f"{self.method} has one tail: give all devices one cut below all units"
            )


def _each(values: Sequence[int], devices: int) -> tuple[int, ...]:
    """One value a device; a single one is for all."""
    values = tuple(values)
    if len(values) == 1:
        return values * devices
    if len(values) != devices:
        raise ConfigError(f"{len(values)} values for {devices} devices: give one, or one each")
    return values
