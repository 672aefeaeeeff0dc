"""The first words of a connection, on the server's side: who comes, and how its clock runs.

device   hello                  probe        probe   ...   clock
server          welcome (job)         reply        reply
"""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from alkit.split.channel import Channel
from alkit.split.wire import Message, WireError

__all__ = ["Greeting", "welcome"]

PROBES = 6
PATIENCE_S = 30.0  # for each of these messages


class Greeting(NamedTuple):
    """What a device said of itself.

    Attributes:
        round, step: where its live head is; -1 without one.
        saved: rounds and cuts at whose beginning its optimiser is known.
        offset_s: server's clock minus the device's, as the device has found it.
    """

    device: int
    round: int
    step: int
    saved: list[tuple[int, int]]
    offset_s: float


def welcome(
    channel: Channel, job: Mapping[str, Any], name: str, devices: int, identity: int | None
) -> Greeting:
    """Receive a hello, answer it, and answer the probes.

    Args:
        job: what the device is told.
        name: of the job that it must be of.
        identity: device that the transport has made sure of; None if it can't.
    Raises:
        WireError: it is not wanted; says why.
        ChannelLost: it has gone.
    """
    hello = _due(channel, "hello")
    index = int(hello.values["device"])
    if hello.values["job"] != name:
        raise WireError(f"device {index} is of job {hello.values['job']!r}; this is {name!r}")
    if index not in range(devices):
        raise WireError(f"no device {index}: there are 0 to {devices - 1}")
    if identity is not None and identity != index:
        raise WireError(f"the certificate is of device {identity}, not of {index}")
    saved = [tuple(key) for key in hello.values["saved"] if _is_key(key)]
    channel.send(Message("welcome", values={"job": dict(job), "probes": PROBES}))
    for _ in range(PROBES):
        probe = _due(channel, "probe")
        values = {"t1": probe.arrived_s, "t2": time.perf_counter()}
        channel.send(Message("probe_reply", values=values))
    offset_s = float(_due(channel, "clock").values["offset_s"])
    place = int(hello.values["round"]), int(hello.values["step"])
    return Greeting(index, *place, saved, offset_s)


def _due(channel: Channel, kind: str) -> Message:
    message = channel.receive(PATIENCE_S)
    if message.kind != kind:
        raise WireError(f"{message.name} came where a {kind} was due")
    return message


def _is_key(key: Any) -> bool:
    return isinstance(key, list) and len(key) == 2 and all(type(each) is int for each in key)
