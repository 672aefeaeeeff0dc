"""Read the configuration of a run, TOML or JSON: with our keys, or keys of the published code.

`layer_num_on_client` is `cut`, `pipe_batch_num` is `micro`, ... Unknown keys are refused. The log
says which values ask for things that they do not get.
"""

import json
import logging
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alkit.split.settings import ALL, Config

log = logging.getLogger(__name__)
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
# published switches that don't exist here: the value that changes nothing, and the behaviour here
SWITCHES = {
    "async_comm": (True, "sending and computing always overlap; micro = 1 is one after the other"),
    "half_duplex": (False, "both directions of a link are used at once"),
    "enable_profiler": (False, "the times of all lanes are always written, to events.csv"),
}
OTHERWISE = ("immediate_update", "duplicate_pipe_batch")  # change the result, and are not built


def read(path: str | Path, **changes: Any) -> Config:
    """Read a file, `.toml` or `.json`; changes count instead of its values."""
    text = Path(path).read_text("utf-8-sig", "replace")
    try:
        found = json.loads(text) if Path(path).suffix == ".json" else tomllib.loads(text)
        values = dict[str, Any]()
        for key, value in _explained(dict(found)).items():
            name = ALIASES.get(key, key)
            if name in values or name in INNER:
                raise ValueError(f"{name} is set twice, or is no key of a file")
            values[name] = value
        return Config(**values | changes)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error


def _explained(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, translated where they mean something else in a published file."""
    left = {key: value for key, value in values.items() if key not in SWITCHES}
    for key in OTHERWISE:
        if left.pop(key, False) is not False:
            raise ValueError(f"{key} is not built here: leave it out")
    for key, (usual, what) in SWITCHES.items():
        if values.get(key, usual) is not usual:
            log.warning("%s = %s: here %s", key, values[key], what)
    if left.get("profile_iter_num") == -1:
        left["profile_iter_num"] = 0  # the published default: cut and micro-batches are given
    if left.get("thread_num") in (0, -1):
        log.warning("thread_num = %s: bits depend on it, so here it is 1", left["thread_num"])
        left["thread_num"] = 1
    if left.get("layer_num_on_client") in (0, ALL):
        left.pop("pipe_batch_num", None)  # there is nothing to overlap
    alike, size = left.pop("same_data_size_for_each_client", True), left.get("data_size", 0)
    if type(alike) is not bool:
        raise ValueError(f"same_data_size_for_each_client is {alike!r}, which is no bool")
    if size and not alike:  # it is shared out among them
        left["data_size"] = max(1, size // max(1, left.get("client_num", left.get("devices", 1))))
    for key in ("data", "dataset_name"):
        if key in left:
            left[key] = DATA.get(str(left[key]).lower(), left[key])
    return left
