"""Configurations of the published code: their names for our keys, and what is otherwise here."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alkit.split.settings import ConfigError

log = logging.getLogger(__name__)
SHARED_SIZE = "same_data_size_for_each_client"  # false: data_size is shared out among them
DATA = {"cifar-10": "cifar10", "mnist": "mnist", "svhn": "svhn", "digits": "digits"}
# the published names
ALIASES = {
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
    "layer_num_on_client": "cut",
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


def explained(found: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the values with those that mean something else in a published file taken over.

    What a value asks for and does not get is said in the log; no result depends on it.

    Raises:
        ConfigError: a value is of another type, or asks for what is not built here.
    """
    left = dict(found)
    for key in OTHERWISE:
        if typed(path, key, left.pop(key, False), bool):
            raise ConfigError(f"{path}: {key} = true is not built here: leave it out")
    for key, (usual, what) in PUBLISHED.items():
        if typed(path, key, left.pop(key, usual), bool) is not usual:
            log.warning("%s: %s = %s: here %s", path, key, found[key], what)
    for key in ("step_s", "heartbeat_s"):
        if typed(path, key, left.pop(key, 60.0), float) != 60.0:
            what = "pings find a party that is lost: patience_s"
            log.warning("%s: %s = %s: here %s", path, key, found[key], what)
    if left.get("profile_iter_num") == -1:
        left["profile_iter_num"] = 0  # the published default: cut and micro-batches are given
    if left.get("thread_num") in (0, -1):
        left["thread_num"] = 1
        what = "bits depend on it, so it is one number for all, and not all cores: 1"
        log.warning("%s: thread_num = %s: here %s", path, found["thread_num"], what)
    size, devices = left.get("data_size", 0), left.get("client_num", left.get("devices", 1))
    alike = typed(path, SHARED_SIZE, left.pop(SHARED_SIZE, True), bool)
    if not alike and type(size) is type(devices) is int and size >= devices > 0:
        left["data_size"] = size // devices
    return left


def typed(path: Path, key: str, value: Any, wanted: Any) -> Any:
    """Return a value of a file if it is of the wanted type; a whole number may be a float.

    Raises:
        ConfigError: it is not.
    """
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise ConfigError(f"{path}: {key} is {value!r}, which is no {wanted.__name__}")
    return value
