"""The first words of a connection: who comes, how its clock runs, and for the planner how fast.

    device   hello   probe   probe ...  [load  load        profile]
    server       probe   probe ...     [     load   load          ]  welcome (job)

The server drives; a device answers what it is asked, see `alkit.split.device`.
"""

import time
from dataclasses import dataclass

import torch

from alkit.split.link import Link
from alkit.split.profile import LOAD_BYTES, Machine
from alkit.split.profile import Link as Speeds
from alkit.split.wire import Message, WireError

PROBES = 6
HELLO_S = 5.0  # for the first message
PATIENCE_S = 60.0  # for each of the others
FAST_BPS = 1e10  # of a link that takes no time


class Unwanted(WireError):
    """A device of another run: what it says is right, and it may come back as another one."""


@dataclass(frozen=True)
class Greeting:
    """What a device said of itself.

    Attributes:
        token: another one for each process, so that two with one number are told apart.
        saved: rounds and cuts at whose beginning its optimiser is known.
        offset_s: server's clock minus the device's.
        machine, speeds: its profile and what the link carried, if they were asked for.
    """

    device: int
    token: str
    saved: set[tuple[int, int]]
    offset_s: float
    machine: Machine | None = None
    speeds: Speeds | None = None


async def greet(link: Link, *, name: str, devices: int, profile: int) -> Greeting:
    """Receive a hello, and learn what there is to know of whoever has come.

    Args:
        name: of the job that it must be of.
        profile: repetitions of the device's profile; 0 for none.
    Raises:
        Unwanted, WireError: it is not wanted, or sends nonsense; says why.
        Lost: it has gone, or says nothing.
    """
    hello = await link.receive("hello", limit_s=HELLO_S)
    index, saved = hello.values["device"], {(at, cut) for at, cut in hello.values["saved"]}
    if hello.values["job"] != name:
        raise Unwanted(f"device {index} is of job {hello.values['job']!r}; this is {name!r}")
    if index not in range(devices):
        raise Unwanted(f"no device {index}: there are 0 to {devices - 1}")
    trips = []
    for _ in range(PROBES):  # the fastest exchange tells the clocks apart
        sent_s = time.perf_counter()
        await link.send(Message("probe"))
        reply = await link.receive("probe", limit_s=PATIENCE_S)
        trip_s = reply.arrived_s - sent_s
        trips.append((trip_s, sent_s + trip_s / 2 - reply.sent_s))
    offset_s = min(trips)[1]
    own = index, hello.values["token"], saved, offset_s
    if not profile:
        return Greeting(*own)
    return Greeting(*own, *await _profiled(link, offset_s, profile))


def load() -> Message:
    """Return bytes that time a link."""
    return Message("load", tensors={"load": torch.zeros(LOAD_BYTES, dtype=torch.uint8)})


async def _profiled(link: Link, offset_s: float, repeats: int) -> tuple[Machine, Speeds]:
    """Time a load each way, and receive what the device made of itself."""
    await link.send(Message("load", step=repeats))
    came = await link.receive("load", limit_s=PATIENCE_S)
    sent_s = time.perf_counter()
    await link.send(load())
    found = await link.receive("profile")
    machine = Machine.read(found.values["text"])
    up_s = came.arrived_s - (came.sent_s + offset_s)
    down_s = found.values["arrived_s"] + offset_s - sent_s
    return machine, Speeds(_speed(up_s), _speed(down_s))


def _speed(seconds: float) -> float:
    """Return the bit/s at which a load came."""
    return 8 * LOAD_BYTES / seconds if seconds > 1e-4 else FAST_BPS
