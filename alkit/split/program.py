"""The programs of split learning: a server, and devices, each a process of its own.

alkit split server --config run.toml              on the server
alkit split device --config run.toml --index 0    on a device
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from tqdm.auto import tqdm

from alkit.data.files import replacing
from alkit.engine.device import cores
from alkit.split import data as samples_of
from alkit.split import results
from alkit.split.choosing import Choosing
from alkit.split.config import Config, ConfigError
from alkit.split.device import Device, Job
from alkit.split.grpc_link import connect, listen
from alkit.split.planner import Workload
from alkit.split.profile import Link, measure
from alkit.split.rounds import RoundRecord
from alkit.split.server import Server
from alkit.split.settings import Settings
from alkit.split.stream import Stream, steps_an_epoch

log = logging.getLogger(__name__)


def serve(config: Config, *, on: str | None = None, progress: bool = True) -> Path:
    """Run the server to the end; return the table of results; the model lies beside it.

    It begins where a checkpoint in the configuration's folder says, if one is there.

    Args:
        on: device that tails train on, such as "cuda"; the CPU without. No other party is told.
    Raises:
        DeviceLost: a device is away for too long.
    """
    units = samples_of.network(config, on)
    settings = config.settings(len(units))
    counts = samples_of.counts(config)
    folder = Path(config.folder)
    evaluate = samples_of.evaluator(config, on)
    choosing = _choosing(config, units, settings, counts) if config.profile else None
    bar = tqdm(desc="rounds", unit="round", disable=not progress)
    events = results.Events(folder / "events.csv")

    def report(record: RoundRecord) -> None:
        events.add(record)
        record.show(bar)

    options: dict[str, Any] = {"name": config.digest, "profile": config.profile}
    options |= {"path": folder / "server.pt", "evaluate": evaluate, "choosing": choosing}
    server = Server(
        units, settings, counts, example=samples_of.example(config), report=report, **options
    )
    bar.total, bar.n = server.rounds, server.round
    bar.refresh()
    start_s = time.perf_counter()
    try:
        asyncio.run(_served(config, server))
    finally:
        bar.close()
    _write(folder, config, server, time.perf_counter() - start_s)
    (folder / "server.pt").unlink(missing_ok=True)  # the run is over
    return folder / "results.csv"


async def _served(config: Config, server: Server) -> None:
    settings = server.settings
    room: dict[str, Any] = {"streams": 2 * settings.devices + 8}
    room |= {"ahead": 2 * max(settings.micros) + 4, "limit": samples_of.message_limit(config)}
    address = f"{config.server_address}:{config.port}"
    async with listen(server.join, address, patience_s=config.patience_s, **room) as port:
        where = f"{config.server_address}:{port}"
        log.info("listening at %s for %d devices", where, settings.devices)
        await server.run()


def _write(folder: Path, config: Config, server: Server, total_s: float) -> None:
    """Write the table, the rounds and the model."""
    seen = results.Events(folder / "events.csv").read()
    frame = results.table(config.name, server.settings, server.records, seen, total_s)
    plain = {
        "config": asdict(config),
        "rounds": [record.plain() for record in server.records],
        "total_s": total_s,
    }
    results.write(folder, frame, plain)
    with replacing(folder / "model.safetensors") as partial:
        safetensors.torch.save_file(server.state, partial)


def device(
    config: Config, index: int, *, on: str | None = None, progress: bool = True
) -> dict[str, Tensor]:
    """Run a device to the end; return the final weights of its units.

    Args:
        on: device of this machine that its head trains on, such as "cuda"; the CPU without.
    Raises:
        ConfigError: there is no such device.
        Lost, Refused: see `Device.run`.
    """
    if index not in range(config.devices):
        raise ConfigError(f"no device {index}: there are 0 to {config.devices - 1}")
    part = samples_of.part_of(config, index)
    units = samples_of.network(config, on)
    settings = config.settings(len(units))
    stream = Stream(part.x, part.y, settings, index, samples_of.normal_of(part))
    address = f"{config.server_address}:{config.port}"
    room = {"limit": samples_of.message_limit(config), "ahead": 2 * config.micro + 4}
    about: dict[str, Any] = {"folder": Path(config.folder), "progress": progress}
    runner = Device(index, Job(settings, units, stream), name=config.digest, **about)
    reach = partial(connect, address, patience_s=config.patience_s, **room)
    return asyncio.run(runner.run(reach))


def _choosing(
    config: Config, units: Sequence[torch.nn.Module], settings: Settings, counts: Sequence[int]
) -> Choosing:
    """Profile this machine as the server, and say what each device has to train."""
    if config.method != "pipelearn":
        raise ConfigError("profile is for method 'pipelearn': it chooses a cut")
    part = samples_of.part_of(config, 0)  # of the size and kind of a device's
    [first] = Stream(part.x, part.y, settings, 0, samples_of.normal_of(part)).step(0, 1)
    server = measure(units, first.x, first.y, repeats=config.profile, threads=config.threads)
    input_bytes = first.x[0].numel() * first.x.element_size()
    common: dict[str, Any] = {"least": settings.least, "input_bytes": input_bytes}
    common["contention"] = max(1.0, settings.devices * settings.threads / cores())
    workloads = [
        Workload(min(settings.batch, own), own, averages=_averages(settings, own), **common)
        for own in counts
    ]
    rates = config.uplink_mbit, config.downlink_mbit
    return Choosing(server, workloads, Link.of_rates(*rates) if all(rates) else None)


def _averages(settings: Settings, samples: int) -> float:
    """Return how often the networks are averaged in an epoch of a device."""
    if settings.aggregate_every > 0:
        return steps_an_epoch(settings, samples) / settings.aggregate_every
    return 1.0 if settings.aggregate_every else 1.0 / settings.epochs
