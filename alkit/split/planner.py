"""Choose where to cut and how many micro-batches to take, before anything is trained.

Every cut, from all units on the server to all on the device (federated learning), and every number
of micro-batches is a candidate; its epoch is the recurrence of `times` for each iteration, and the
exchange of the device's weights. Candidates that need more memory than there is are kept in the
table and not chosen.

    epoch = iterations * T(cut, micro) + averages * (weights of the device's units up and down)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from alkit.split.profile import Link, Machine, Unit
from alkit.split.schedule import split_sizes
from alkit.split.times import Line, Times, iteration_s

LABEL_BYTES = 8  # a sample
FRAME_BYTES = 300  # a message: header, names, shapes
COPIES = 3  # weights, gradients, momentum
MOST = 100  # micro-batches


@dataclass(frozen=True)
class Workload:
    """What is to be trained.

    Attributes:
        batch, samples: of the device.
        input_bytes: a sample.
        averages: an epoch.
        least: samples that a micro-batch must have.
        contention: how many times as long the server takes, for it serves several devices: devices
            over cores if that is more than 1.
    """

    batch: int
    samples: int
    input_bytes: float
    averages: float = 1.0
    least: int = 1
    contention: float = 1.0


@dataclass(frozen=True)
class Candidate:
    """One cut with one number of micro-batches.

    Attributes:
        iteration_s, epoch_s: predicted.
        device_bytes, server_bytes: of memory that training takes.
        fits: both are there.
    """

    cut: int
    micro: int
    iteration_s: float
    epoch_s: float
    device_bytes: float
    server_bytes: float
    fits: bool


def candidates(device: Machine, server: Machine, link: Link, workload: Workload) -> list[Candidate]:
    """Return all candidates, the fastest first; both machines have the same units."""
    units, batch, least = len(device.units), workload.batch, workload.least
    sizes = {len(split_sizes(batch, -(-batch // size), least)) for size in range(1, batch + 1)}
    micros = sorted(number for number in sizes if number <= min(MOST, batch // least))
    found = [
        _candidate(device, server, link, workload, cut, micro)
        for cut in range(units + 1)
        for micro in (micros if 0 < cut < units else [1])
    ]
    return sorted(found, key=lambda each: (each.epoch_s, each.cut, each.micro))


def best(found: Sequence[Candidate]) -> Candidate:
    """Return the fastest that fits.

    Raises:
        ValueError: none does.
    """
    fitting = [each for each in found if each.fits]
    if not fitting:
        raise ValueError(
            "no cut fits the memory of device and server: give a smaller batch or network"
        )
    return min(fitting, key=lambda each: (each.epoch_s, each.cut, each.micro))


def times_at(device: Machine, server: Machine, link: Link, workload: Workload, cut: int) -> Times:
    """Return the lines of a cut."""
    head, tail = device.units[:cut], server.units[cut:]
    carried = device.units[cut - 1].output_bytes if cut else workload.input_bytes
    work = Line.total([line for own in tail for line in (own.forward, own.backward)])
    up = Line(link.up_s(FRAME_BYTES), link.up_s(carried + LABEL_BYTES))
    down = Line(link.down_s(FRAME_BYTES), link.down_s(carried))
    sends, returns = bool(tail), bool(tail and head)
    return Times(
        forward=Line.total([own.forward for own in head]),
        up=up if sends else Line(),
        server=work.scaled(workload.contention),
        down=down if returns else Line(),
        backward=Line.total([own.backward for own in head]),
        update=sum(own.update_s for own in head),
        server_update=sum(own.update_s for own in tail) * workload.contention,
        latency_up_s=link.latency_up_s * sends,
        latency_down_s=link.latency_down_s * returns,
    )


def _candidate(
    device: Machine, server: Machine, link: Link, workload: Workload, cut: int, micro: int
) -> Candidate:
    times, least = times_at(device, server, link, workload, cut), workload.least
    whole, rest = divmod(workload.samples, workload.batch)
    sizes = split_sizes(workload.batch, micro, least)
    one = iteration_s(times, sizes)
    epoch = whole * one + (iteration_s(times, split_sizes(rest, micro, least)) if rest else 0.0)
    weights = sum(own.parameter_bytes for own in device.units[:cut])
    epoch += workload.averages * (link.up_s(weights) + link.down_s(weights))
    on_device = _memory(device.units[:cut], workload.batch)
    on_server = _memory(server.units[cut:], max(sizes))
    needs = (device, on_device), (server, on_server)
    fits = all(own.memory_bytes is None or size <= own.memory_bytes for own, size in needs)
    return Candidate(cut, len(sizes), one, epoch, on_device, on_server, fits)


def _memory(units: Sequence[Unit], samples: int) -> float:
    weights = COPIES * sum(own.parameter_bytes for own in units)
    return weights + samples * sum(own.saved_bytes for own in units)
