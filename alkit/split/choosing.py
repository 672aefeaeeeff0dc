"""What ranks agree on before the start: settings, clocks, and with a profiler where to cut.

    server    the same?   clock, 6 times   load (1 MiB)      load             cuts, micro-batches
    device    the same?   clock                        load        its units
"""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from alkit.engine import checkpoint as checkpoints
from alkit.engine.device import cores
from alkit.engine.group import Group
from alkit.split.channel import Channel
from alkit.split.planner import Workload, best, candidates
from alkit.split.profile import LOAD_BYTES, Link, Machine, measure
from alkit.split.settings import Settings
from alkit.split.stream import Stream, steps_an_epoch

log = logging.getLogger(__name__)


def agreed(
    settings: Settings,
    units: Sequence[nn.Module],
    streams: Sequence[Stream],
    group: Group,
    checkpoint: str | Path | None = None,
) -> tuple[Settings, list[Channel]]:
    """Return the settings that hold, and this rank's channels; all ranks call it.

    Args:
        checkpoint: of the run, if it goes on: its choice of cuts holds.
    Raises:
        RanksDiffer: settings or labels differ.
    """
    text = torch.frombuffer(bytearray(json.dumps(settings.plain()).encode()), dtype=torch.uint8)
    parts = {"settings": text, "labels": [own.y for own in streams]}
    group.check_equal(parts, when="before the first step ", advice="give all the same file or call")
    if group.is_first:
        channels = [Channel(1 + at, "uplink", 0) for at in range(settings.devices)]
    else:
        channels = [Channel(0, "downlink", 1)]
    seconds = [each.meet(asks=group.is_first) for each in channels]
    if settings.profile:
        timed = _measured(settings, units, streams[max(0, group.rank - 1)])
        told = (
            _chosen(settings, streams, channels, seconds, timed, checkpoint)
            if group.is_first
            else _answered(channels[0], timed)
        )
        settings = replace(settings, **json.loads(told))
    for each in channels:
        each.seen = []
    return settings, channels


def _measured(settings: Settings, units: Sequence[nn.Module], stream: Stream) -> Machine:
    [part] = stream.step(0, 1)
    return measure(units, part.x, part.y, repeats=settings.profile, threads=settings.threads)


def _answered(channel: Channel, timed: Machine) -> str:
    """Let the server time the link, tell it what units take, and return what it chose."""
    for answer in (torch.zeros(LOAD_BYTES, dtype=torch.uint8), None, timed.plain()):
        channel.hear()
        channel.tell(answer)
    told: str = channel.hear()
    return told


def _chosen(
    settings: Settings,
    streams: Sequence[Stream],
    channels: Sequence[Channel],
    seconds: Sequence[float],
    server: Machine,
    checkpoint: str | Path | None,
) -> str:
    """Choose for every device, and tell all of them; a run that goes on keeps its choice."""
    rates = settings.uplink_mbit, settings.downlink_mbit
    given = Link.of_rates(*rates) if all(rates) else None
    found = dict[str, list[int]](cuts=[], micro=[])
    for at, (channel, stream) in enumerate(zip(channels, streams, strict=True)):
        link = _probed(channel, seconds[at])
        machine = Machine.read(channel.hear())
        one = best(candidates(machine, server, given or link, _workload(settings, stream)))
        found["cuts"].append(one.cut)
        found["micro"].append(one.micro)
        said = f"{link.up_bps / 1e6:.1f} Mbit/s up, {link.down_bps / 1e6:.1f} down"
        plan = f"cut after {one.cut} units, {one.micro} micro-batches"
        log.info("device %d: %s: %s, %.3f s per iteration", at, said, plan, one.iteration_s)
    if checkpoint is not None and Path(checkpoint).exists():
        before = checkpoints.load(checkpoint)["settings"]
        found = {name: before[name] for name in found}
    for channel in channels:
        channel.tell(json.dumps(found))
    return json.dumps(found)


def _probed(channel: Channel, seconds: float) -> Link:
    """Send a load each way; return what the link carries.

    Args:
        seconds: of a message there and back, of which a load that is asked for costs two.
    """
    moments = [time.perf_counter()]
    for sent in (None, torch.zeros(LOAD_BYTES, dtype=torch.uint8)):
        channel.tell(sent)
        channel.hear()
        moments.append(time.perf_counter())
    channel.tell(None)
    up_s, down_s = (max(1e-6, end - start - 2 * seconds) for start, end in pairwise(moments))
    return Link(8 * LOAD_BYTES / up_s, 8 * LOAD_BYTES / down_s, seconds / 2, seconds / 2)


def _workload(settings: Settings, stream: Stream) -> Workload:
    """Return what a device has to train; the server's cores are shared by all tails."""
    samples, every = len(stream.y), settings.aggregate_every
    averages = 1.0 if every else 1.0 / settings.epochs
    if every > 0:
        averages = steps_an_epoch(settings, samples) / every
    [part] = stream.step(0, 1)
    return Workload(
        min(settings.batch, samples),
        samples,
        input_bytes=part.x[0].numel() * part.x.element_size(),
        averages=averages,
        least=settings.least,
        contention=max(1.0, settings.devices * settings.threads / cores()),
    )
