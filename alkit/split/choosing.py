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
from alkit.engine.group import Group
from alkit.split.channel import Channel
from alkit.split.planner import Workload, candidates
from alkit.split.profile import Link, Unit, measure
from alkit.split.settings import Settings
from alkit.split.stream import Stream


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
    parts = {"settings": text, "labels": [each.y for each in streams]}
    group.check_equal(parts, when="before the first step ", advice="give all the same file or call")
    channels = [Channel(peer) for peer in (range(1, group.ranks) if group.is_first else [0])]
    for channel in channels:
        channel.meet()
    if settings.profile:
        [part] = streams[max(0, group.rank - 1)].step(0, 1)
        options: dict[str, Any] = {"repeats": settings.profile, "threads": settings.threads}
        profiles = group.gather(measure(units, part.x, part.y, **options))
        choice = group.from_first(_choice, settings, streams, profiles, checkpoint)
        settings = replace(settings, **choice)
    return settings, channels


def _choice(
    settings: Settings,
    streams: Sequence[Stream],
    profiles: Sequence[Sequence[Unit]],
    checkpoint: str | Path | None,
) -> dict[str, Any]:
    """Choose for every device by the machines' profiles; a run that goes on keeps its choice."""
    if checkpoint is not None and Path(checkpoint).exists():
        before = checkpoints.load(checkpoint)["settings"]
        return {name: before[name] for name in ("cuts", "micro")}
    server, *devices = profiles
    link = Link.of_rates(settings.uplink_mbit, settings.downlink_mbit)
    best = [
        candidates(device, server, link, Workload.of(settings, stream))[0]
        for device, stream in zip(devices, streams, strict=True)
    ]
    return {"cuts": [each.cut for each in best], "micro": [each.micro for each in best]}
