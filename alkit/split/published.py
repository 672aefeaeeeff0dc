"""A run's configuration as a file, TOML or JSON: our keys, or those of the published code.

`layer_num_on_client` is `cut`, `pipe_batch_num` is `micro`, ...; unknown keys are refused, and what
a value asks for and does not get is said in the log.
"""

import difflib
import json
import logging
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from alkit.split.settings import ALL, Config, ConfigError

log = logging.getLogger(__name__)
SHARED_SIZE = "same_data_size_for_each_client"  # false: data_size is shared out among them
DATA = {"cifar-10": "cifar10", "mnist": "mnist", "svhn": "svhn", "digits": "digits"}
INNER = ("units", "least", "events")  # settings that no file has
ALIASES = {
    "cut": "cuts",
    # the published names
    "experiment_name": "name",
    "client_num": "devices",
    "dataset_name": "data",
    "model_name": "model",
    "test_data_size": "test_size",
    "epoch_num": "epochs",
    "aggregation_frequency": "aggregate_every",
    "batch_size": "batch",
    "enable_val": "validate",
    "enable_test": "test",
    "layer_num_on_client": "cuts",
    "pipe_batch_num": "micro",
    "profile_iter_num": "profile",
    "uplink_bandwidth": "uplink_mbit",
    "downlink_bandwidth": "downlink_mbit",
    "thread_num": "threads",
}
# published switches that are none here: the value that changes nothing, and what is so here
PUBLISHED = {
    "async_comm": (True, "sending and computing always overlap; micro = 1 is one after the other"),
    "half_duplex": (False, "both directions of a link are used at once"),
    "enable_profiler": (False, "the times of all lanes are always written, to events.csv"),
}
# published switches that change the result, and are not built here
OTHERWISE = ("immediate_update", "duplicate_pipe_batch")


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
    return Config(**_named(_explained(found, path), path) | changes)


def _named(found: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the values by our names, of the right types."""
    types = {each.name: each.type for each in fields(Config) if each.name not in INNER}
    types |= dict.fromkeys(("cuts", "micro"), int)
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
        values[name] = _typed(path, key, value, types[name])
    if "data" in values:
        values["data"] = DATA.get(values["data"].lower(), values["data"])
    return values


def _explained(found: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the values with those that mean something else in a published file taken over.

    Raises:
        ConfigError: a value is of another type, or asks for what is not built here.
    """
    left = dict(found)
    for key in OTHERWISE:
        if _typed(path, key, left.pop(key, False), bool):
            raise ConfigError(f"{path}: {key} = true is not built here: leave it out")
    for key, (usual, what) in PUBLISHED.items():
        if _typed(path, key, left.pop(key, usual), bool) is not usual:
            log.warning("%s: %s = %s: here %s", path, key, found[key], what)
    if left.get("profile_iter_num") == -1:
        left["profile_iter_num"] = 0  # the published default: cut and micro-batches are given
    if left.get("thread_num") in (0, -1):
        left["thread_num"] = 1
        what = "bits depend on it, so it is one number for all, and not all cores: 1"
        log.warning("%s: thread_num = %s: here %s", path, found["thread_num"], what)
    if left.get("layer_num_on_client") in (0, ALL):
        left.pop("pipe_batch_num", None)  # there is nothing to overlap
    size, devices = left.get("data_size", 0), left.get("client_num", left.get("devices", 1))
    alike = _typed(path, SHARED_SIZE, left.pop(SHARED_SIZE, True), bool)
    if not alike and type(size) is type(devices) is int and size >= devices > 0:
        left["data_size"] = size // devices
    return left


def _typed(path: Path, key: str, value: Any, wanted: Any) -> Any:
    """Return a value of a file if it is of the wanted type; a whole number may be a float."""
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise ConfigError(f"{path}: {key} is {value!r}, which is no {wanted.__name__}")
    return value
