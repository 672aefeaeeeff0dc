"""What ranks agree on before the start: settings, clocks, and with a profiler where to cut.

server    the same?   clock, 6 times   its units   cuts, micro-batches
device    the same?   clock            its units
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

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
        options: dict[str, Any] = {"repeats": settings.profile, "threads": settings.threads}
        texts = group.gather(measure(units, part.x, part.y, **options).plain())
        told = group.from_first(_chosen, settings, streams, texts, checkpoint)
        settings = replace(settings, **json.loads(told))
    return settings, channels


def _chosen(
    settings: Settings,
    streams: Sequence[Stream],
    texts: Sequence[str],
    checkpoint: str | Path | None,
) -> str:
    """Choose for every device by the machines' profiles; a run that goes on keeps its choice."""
    if checkpoint is not None and Path(checkpoint).exists():
        before = checkpoints.load(checkpoint)["settings"]
        return json.dumps({name: before[name] for name in ("cuts", "micro")})
    server, *devices = map(Machine.read, texts)
    link = Link.of_rates(settings.uplink_mbit, settings.downlink_mbit)
    found = [
        best(candidates(device, server, link, workload(settings, stream)))
        for device, stream in zip(devices, streams, strict=True)
    ]
    return json.dumps({"cuts": [own.cut for own in found], "micro": [own.micro for own in found]})


def workload(settings: Settings, stream: Stream) -> Workload:
    """Return what a device has to train; the server's cores are shared by all tails."""
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
