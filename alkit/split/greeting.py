"""The first words of a connection, on both sides.

They tell who comes, how its clock runs and, for the planner, how fast it and its link are:

    device   hello                  probe        probe   ...   clock   [load         profile]
    server          welcome (job)         reply        reply               [    load        ]
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from alkit.split.answers import receive
from alkit.split.channel import PIECE, Channel, ChannelLost
from alkit.split.expect import Due, Expect
from alkit.split.profile import LOAD_BYTES, Link, Machine
from alkit.split.wire import Message, WireError

__all__ = [
    "PATIENCE_S",
    "Greeting",
    "Unwanted",
    "compare_clocks",
    "refuse",
    "say_profile",
    "welcome",
]

log = logging.getLogger(__name__)

PROBES = 6
PATIENCE_S = 60.0  # for each of these messages
FAST_BPS = 1e10  # of a link that takes no time


class Unwanted(WireError):
    """A device of another run: what it says is right, and it may come back as another one."""


class Greeting(NamedTuple):
    """What a device said of itself.

    Attributes:
        round, step: where its live head is; -1 without one.
        saved: rounds and cuts at whose beginning its optimiser is known.
        offset_s: server's clock minus the device's, as the device has found it.
        machine, link: its profile and what the link carried, if they were asked for.
    """

    device: int
    round: int
    step: int
    saved: list[tuple[int, int]]
    offset_s: float
    machine: Machine | None = None
    link: Link | None = None


def welcome(
    channel: Channel,
    expect: Expect,
    job: Mapping[str, Any],
    name: str,
    devices: int,
    identity: int | None,
    profile: int = 0,
) -> Greeting:
    """Receive a hello, answer it, and answer the probes.

    Args:
        job: what the device is told.
        name: of the job that it must be of.
        identity: device that the transport has made sure of; None if it can't.
        profile: repetitions of the device's profile; 0 for none.
    Raises:
        Unwanted, WireError: it is not wanted, or sends nonsense; says why.
        ChannelLost: it has gone.
    """
    hello = expect.receive(channel, Due("hello"), PATIENCE_S)
    index = int(hello.values["device"])
    if hello.values["job"] != name:
        raise Unwanted(f"device {index} is of job {hello.values['job']!r}; this is {name!r}")
    if index not in range(devices):
        raise Unwanted(f"no device {index}: there are 0 to {devices - 1}")
    if identity is not None and identity != index:
        raise Unwanted(f"the certificate is of device {identity}, not of {index}")
    if why := expect.differs(hello.values["network"].split()):
        raise Unwanted(f"the network of device {index} is another one: {why}")
    saved = [tuple(key) for key in hello.values["saved"]]
    told = {"job": dict(job), "probes": PROBES, "profile": profile}
    channel.send(Message("welcome", values=told))
    for _ in range(PROBES):
        probe = expect.receive(channel, Due("probe"), PATIENCE_S)
        values = {"t1": probe.arrived_s, "t2": time.perf_counter()}
        channel.send(Message("probe_reply", values=values))
    offset_s = float(expect.receive(channel, Due("clock"), PATIENCE_S).values["offset_s"])
    place = int(hello.values["round"]), int(hello.values["step"])
    found = _profiled(channel, expect) if profile else (None, None)
    return Greeting(index, *place, saved, offset_s, *found)


def refuse(channel: Channel, text: str) -> None:
    """Tell a peer why it is not served, if it still listens."""
    try:
        channel.send(Message("error", values={"text": text}))
    except (ChannelLost, WireError):
        log.info("could not tell %s: %s", channel.peer, text)


def _profiled(channel: Channel, expect: Expect) -> tuple[Machine, Link]:
    """Time a load upwards, send one downwards, and receive what the device made of itself."""
    up_bps = _speed(expect.receive(channel, Due("load"), PATIENCE_S))
    channel.send(_load())
    found = expect.receive(channel, Due("profile"), PATIENCE_S)
    down_bps = max(1.0, float(found.values["down_bps"]))
    return Machine.read(found.values["text"]), Link(up_bps, down_bps)


def _load() -> Message:
    return Message("load", tensors={"load": torch.zeros(LOAD_BYTES, dtype=torch.uint8)})


def _speed(load: Message) -> float:
    """Return the bit/s at which a load came: what followed its first piece, and the time of it."""
    seconds = load.arrived_s - load.first_s
    return 8 * (load.size - PIECE) / seconds if seconds > 1e-4 else FAST_BPS


# ---- on the device


def compare_clocks(channel: Channel, probes: int) -> None:
    """Tell the server its clock minus the device's, as the fastest exchange of four times has it.

    Raises:
        Refused, WireError, ChannelLost: see `alkit.split.answers`.
    """
    best = float("inf"), 0.0
    for _ in range(probes):
        t0 = time.perf_counter()
        channel.send(Message("probe"))
        reply = receive(channel, PATIENCE_S, "probe_reply")
        t1, t2, t3 = reply.values["t1"], reply.values["t2"], time.perf_counter()
        best = min(best, (t3 - t0 - (t2 - t1), (t1 - t0 + t2 - t3) / 2))
    channel.send(Message("clock", values={"offset_s": best[1]}))


def say_profile(channel: Channel, measured: Callable[[], Machine]) -> None:
    """Send a load, receive one, and tell what units and downlink take.

    Raises:
        Refused, WireError, ChannelLost: see `alkit.split.answers`.
    """
    channel.send(_load())
    down_bps = _speed(receive(channel, PATIENCE_S, "load"))
    values = {"text": measured().plain(), "down_bps": down_bps}
    channel.send(Message("profile", values=values))
