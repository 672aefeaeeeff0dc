"""What ranks agree on before the start: settings, clocks, and with a profiler where to cut.

server    the same?   clock, 6 times                 cuts, micro-batches
device    the same?   clock            its units
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from alkit.engine import checkpoint as checkpoints
from alkit.engine.device import cores
from alkit.engine.group import Group
from alkit.split.channel import Channel
from alkit.split.planner import Workload, best, candidates
from alkit.split.profile import Link, Machine, measure
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
    for each in channels:
        each.meet(asks=group.is_first)
    if settings.profile:
        [part] = streams[max(0, group.rank - 1)].step(0, 1)
        repeats, threads = settings.profile, settings.threads
        timed = measure(units, part.x, part.y, repeats=repeats, threads=threads)
        if group.is_first:
            told = _chosen(settings, streams, channels, timed, checkpoint)
        else:
            channels[0].tell(timed.plain())
            told = channels[0].hear()
        settings = replace(settings, **json.loads(told))
    for each in channels:
        each.seen = []
    return settings, channels


def _chosen(
    settings: Settings,
    streams: Sequence[Stream],
    channels: Sequence[Channel],
    server: Machine,
    checkpoint: str | Path | None,
) -> str:
    """Choose for every device, and tell all of them; a run that goes on keeps its choice."""
    link = Link.of_rates(settings.uplink_mbit, settings.downlink_mbit)
    found = dict[str, list[int]](cuts=[], micro=[])
    for at, (channel, stream) in enumerate(zip(channels, streams, strict=True)):
        machine = Machine.read(channel.hear())
        one = best(candidates(machine, server, link, workload(settings, stream)))
        found["cuts"].append(one.cut)
        found["micro"].append(one.micro)
        said = "device %d: cut after %d units, %d micro-batches, %.3f s per iteration"
        log.info(said, at, one.cut, one.micro, one.iteration_s)
    if checkpoint is not None and Path(checkpoint).exists():
        before = checkpoints.load(checkpoint)["settings"]
        found = {name: before[name] for name in found}
    for channel in channels:
        channel.tell(json.dumps(found))
    return json.dumps(found)


def workload(settings: Settings, stream: Stream) -> Workload:
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
