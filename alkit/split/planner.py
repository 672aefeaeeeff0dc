"""Choose where to cut and how many micro-batches to take, before anything is trained.

Every cut, from all units on the server to all on the device (federated learning), and every number
of micro-batches is a candidate. Its epoch is the recurrence of `times` for each iteration, and the
exchange of the weights of the device.

    epoch = iterations * T(cut, micro) + averages * (weights of units on the device up and down)
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from alkit.engine.device import cores
from alkit.split.profile import Link, Unit
from alkit.split.schedule import split_sizes
from alkit.split.settings import Settings
from alkit.split.stream import Stream, steps_an_epoch
from alkit.split.times import Line, Times, iteration_s

LABEL_BYTES = 8  # a sample
FRAME_BYTES = 300  # a message: header, names, shapes
MOST = 100  # micro-batches


class Workload(NamedTuple):
    """The work of a device."""

    batch: int
    samples: int
    input_bytes: float  # a sample
    averages: float = 1.0  # an epoch
    least: int = 1  # samples that a micro-batch must have
    contention: float = 1.0  # how many times as long the server takes as if it served this one

    @staticmethod
    def of(settings: Settings, stream: Stream) -> "Workload":
        """Return the workload of a device in a run; all tails share the cores of the server."""
        samples, every, [part] = len(stream.y), settings.aggregate_every, stream.step(0, 1)
        an_epoch = {-1: 1.0, 0: 1.0 / settings.epochs}
        return Workload(
            min(settings.batch, samples),
            samples,
            input_bytes=part.x[0].numel() * part.x.element_size(),
            averages=an_epoch.get(every) or steps_an_epoch(settings, samples) / every,
            least=settings.least,
            contention=max(1.0, settings.devices * settings.threads / cores()),
        )


class Candidate(NamedTuple):
    """One cut with one number of micro-batches, and the predicted seconds."""

    cut: int
    micro: int
    iteration_s: float
    epoch_s: float


def candidates(
    device: Sequence[Unit], server: Sequence[Unit], link: Link, workload: Workload
) -> list[Candidate]:
    """Return all candidates, the fastest first; both machines have the same units."""
    batch, least, found = workload.batch, workload.least, list[Candidate]()
    sizes = {len(split_sizes(batch, -(-batch // size), least)) for size in range(1, batch + 1)}
    micros = sorted(number for number in sizes if number <= min(MOST, batch // least))
    whole, rest = divmod(workload.samples, batch)
    for cut in range(len(device) + 1):
        times = times_at(device, server, link, workload, cut)
        weights = sum(unit.parameter_bytes for unit in device[:cut])
        exchange_s = workload.averages * (link.up_s(weights) + link.down_s(weights))
        for micro in micros if 0 < cut < len(device) else [1]:
            parts = split_sizes(batch, micro, least)
            one_s = iteration_s(times, parts)
            rest_s = iteration_s(times, split_sizes(rest, micro, least)) if rest else 0.0
            epoch_s = whole * one_s + rest_s + exchange_s
            found.append(Candidate(cut, len(parts), one_s, epoch_s))
    return sorted(found, key=lambda each: (each.epoch_s, each.cut, each.micro))


def choice(
    settings: Settings, streams: Sequence[Stream], profiles: Sequence[Sequence[Unit]]
) -> dict[str, Any]:
    """Return the cut and micro-batches that make the slowest device fastest, by profiles."""
    (server, *devices), seconds = profiles, list[dict[tuple[int, int], float]]()
    link = Link.of_rates(settings.uplink_mbit, settings.downlink_mbit)
    for device, stream in zip(devices, streams, strict=True):
        found = candidates(device, server, link, Workload.of(settings, stream))
        seconds.append({(each.cut, each.micro): each.epoch_s for each in found})
    all_can = set(seconds[0]).intersection(*seconds)
    cut, micro = min(all_can, key=lambda one: (max(own[one] for own in seconds), one))
    return {"cuts": [cut], "micro": micro}


def times_at(
    device: Sequence[Unit], server: Sequence[Unit], link: Link, workload: Workload, cut: int
) -> Times:
    """Return the lines of a cut."""
    head, tail = device[:cut], server[cut:]
    carried = device[cut - 1].output_bytes if cut else workload.input_bytes
    work = Line.total([line for unit in tail for line in (unit.forward, unit.backward)])
    up = Line(link.up_s(FRAME_BYTES), link.up_s(carried + LABEL_BYTES))
    down = Line(link.down_s(FRAME_BYTES), link.down_s(carried))
    sends, returns = bool(tail), bool(tail and head)
    return Times(
        forward=Line.total([unit.forward for unit in head]),
        up=up if sends else Line(),
        server=work.scaled(workload.contention),
        down=down if returns else Line(),
        backward=Line.total([unit.backward for unit in head]),
        update=sum(unit.update_s for unit in head),
        server_update=sum(unit.update_s for unit in tail) * workload.contention,
    )
