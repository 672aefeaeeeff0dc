"""A run's configuration as a file, TOML or JSON; the server's is the one that counts.

The key names of the published configuration are understood as well (`layer_num_on_client` is
`cut`, `pipe_batch_num` is `micro`, ...; see `alkit.split.published`); unknown keys are refused.
"""

import difflib
import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from alkit.split.deal import STRATEGIES
from alkit.split.methods import TABLE
from alkit.split.networks import NETWORKS
from alkit.split.published import ALIASES, DATA, explained, typed
from alkit.split.settings import CHOICES as TRAINING_CHOICES
from alkit.split.settings import ConfigError, Settings, Training, check

CHOICES = {
    "model": NETWORKS,
    "partition": STRATEGIES,
    "data": tuple(DATA.values()),
    "norm": ("batch", "group"),
    **TRAINING_CHOICES,
}
MIRRORLESS = ("mnist", "svhn", "digits")  # a digit in a mirror is another sign
ALL = -1  # a cut: all units on the device


@dataclass(frozen=True, kw_only=True)
class Config(Training):
    """One run; `Training` has the attributes that are not here.

    Attributes:
        name: of the experiment, in results.
        server_address, port: where the server listens, and where devices find it. Nothing is
            encrypted, and who connects is believed: name no address outside a private network.
        devices: how many.
        data, data_size, test_size: the set, training samples of each device (0: all, shared out),
            test samples (0: all).
        partition, alpha: who has what, see `alkit.split.deal`.
        model, norm: network, and "batch" or "group".
        method: of `alkit.split.METHODS`.
        cut: units on the device; -1 all of them.
        micro: micro-batches per iteration.
        validate, test: accuracy of the averaged network on samples held out of training, and on the
            test part, after each round.
        profile: iterations of the profiler, which then chooses cut and micro; 0 to take those
            given.
        uplink_mbit, downlink_mbit: the links' speeds, if the profiler is to believe these and not
            its own probes; 0 to probe.
        patience_s: seconds without a sign of life after which the other side is lost.
        folder: for results, checkpoints and the devices' states.
    """

    name: str = "experiment"
    server_address: str = "127.0.0.1"
    port: int = 50000
    devices: int = 1
    data: str = "cifar10"
    data_size: int = 0
    test_size: int = 0
    partition: str = "iid"
    alpha: float = 0.5
    model: str = "VGG5"
    norm: str = "batch"
    method: str = "pipelearn"
    cut: int = 1
    micro: int = 1
    augment: str = "weak"
    validate: bool = False
    test: bool = True
    profile: int = 0
    uplink_mbit: float = 0.0
    downlink_mbit: float = 0.0
    patience_s: float = 5.0
    folder: str = "runs/split"

    def __post_init__(self) -> None:
        check(self, CHOICES)
        if not 0 < self.port < 65536:
            raise ConfigError(f"port is {self.port}: give 1 to 65535")
        if self.cut < ALL:
            raise ConfigError(f"cut is {self.cut}: give -1 (all units on the device) or more")

    def settings(self, units: int) -> Settings:
        """Return what it means for a network of so many units.

        Raises:
            ConfigError: values that don't fit together.
        """
        allowed = TABLE[self.method].cuts(units)
        cut = units if self.cut == ALL else self.cut
        if len(allowed) == 1:  # the method leaves no choice
            cut = allowed[0]
        cuts, micros = (cut,) * self.devices, (1 if cut in (0, units) else self.micro,)
        same = {each.name: getattr(self, each.name) for each in fields(Training)}
        if self.data in MIRRORLESS:
            same["augment"] = "none"
        least = 2 if self.norm == "batch" else 1
        return Settings(units, cuts, self.method, micros, least=least, **same)

    @property
    def digest(self) -> str:
        """Name what all parties must agree on; where they are and how they wait is not part."""
        own = ("server_address", "port", "folder", "patience_s", "name")
        told = {key: value for key, value in asdict(self).items() if key not in own}
        return hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=8).hexdigest()


def read(path: str | Path, **changes: Any) -> Config:
    """Read a file, `.toml` or `.json`.

    Args:
        changes: values that count instead of the file's.
    Raises:
        ConfigError: it can't be read, a key is unknown or set twice, or a value is of another type.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    text = path.read_text(encoding="utf-8")
    try:
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no table of keys")
    return Config(**_named(explained(found, path), path) | changes)


def _named(found: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the values by our names, of the right types."""
    types = {each.name: each.type for each in fields(Config)}
    values: dict[str, Any] = {}
    for key, value in found.items():
        name = ALIASES.get(key, key)
        known = [*types, *ALIASES]
        if name not in types:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
            raise ConfigError(f"{path}: no key {key!r}{hint}")
        if name in values:
            raise ConfigError(f"{path}: {name} is set twice")
        values[name] = typed(path, key, value, types[name])
    if "data" in values:
        values["data"] = DATA.get(values["data"].lower(), values["data"])
    return values
