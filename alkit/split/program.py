"""The programs of split learning: a server, and devices, each a process of its own.

alkit split certs lab --devices 2 --hosts 192.168.1.10
alkit split server --config run.toml          on the server, with lab/authority.* and server.*
alkit split device --config run.toml --index 0    on a device, with device-0.* and authority.pem
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import safetensors.torch
import torch
from torch import Tensor
from tqdm.auto import tqdm

from alkit.data.files import replacing
from alkit.engine.device import cores
from alkit.schedule.timeline import Interval
from alkit.split import data as samples_of
from alkit.split import results
from alkit.split.certs import certificates_in
from alkit.split.choosing import Choosing
from alkit.split.config import Config, ConfigError
from alkit.split.device import Device, Job, Refused
from alkit.split.expect import fingerprints
from alkit.split.grpc_channel import connect
from alkit.split.handshake import Certificates
from alkit.split.listener import Listener
from alkit.split.planner import Workload
from alkit.split.profile import Link, measure
from alkit.split.round import RoundRecord
from alkit.split.server import Server
from alkit.split.session import GOODBYE_S
from alkit.split.settings import Settings
from alkit.split.stream import Stream, steps_an_epoch

__all__ = ["device", "serve"]

log = logging.getLogger(__name__)


def serve(config: Config, *, on: str | None = None, progress: bool = True) -> Path:
    """Run the server to the end; return the table of results; the model lies beside it.

    It begins where a checkpoint in the configuration's folder says, if one is there.

    Args:
        on: device that tails train on, such as "cuda"; the CPU without. No other party is told.
    Raises:
        QuorumLost: too few devices came, or are left.
    """
    units = samples_of.network(config, on)
    settings = config.settings(len(units))
    counts = samples_of.counts(config)
    folder = Path(config.folder)
    evaluate = samples_of.evaluator(config, on)
    choosing = _choosing(config, units, settings, counts) if config.profile else None
    bar = tqdm(desc="rounds", unit="round", disable=not progress)
    options: dict[str, Any] = {"name": config.digest, "profile": config.profile}
    options |= {"path": folder / "server.pt", "evaluate": evaluate, "choosing": choosing}
    options["report"] = lambda record: _show(bar, record)
    server = Server(units, settings, counts, example=samples_of.example(config), **options)
    bar.total, bar.n = server.rounds, server.round
    bar.refresh()
    address, own = f"{config.server_address}:{config.port}", _certificates(config, "server")
    room = {"streams": 2 * settings.devices + 8, "capacity": 2 * max(settings.micros) + 4}
    room["limit"] = samples_of.message_limit(config)
    listener = Listener(server.join, address, own, patience_s=config.patience_s, **room)
    where = f"{config.server_address}:{listener.port}"
    log.info("listening at %s for %d devices", where, settings.devices)
    start_s = time.perf_counter()
    try:
        server.run()
        total_s = time.perf_counter() - start_s
        _say_goodbye(server)
    finally:
        bar.close()
        listener.close()
    _write(folder, config, server, total_s)
    (folder / "server.pt").unlink(missing_ok=True)  # the run is over
    return folder / "results.csv"


def _write(folder: Path, config: Config, server: Server, total_s: float) -> None:
    """Write the table, the rounds, the events of all lanes and the model."""
    frame = results.table(config.name, server.settings, server.records, total_s)
    plain = {
        "config": asdict(config) | {"device": [dict(own) for own in config.device]},
        "rounds": [record.plain() for record in server.records],
        "total_s": total_s,
    }
    results.write(folder, frame, plain)
    seen = [interval for record in server.records for interval in record.intervals]
    with replacing(folder / "events.csv") as partial:
        pd.DataFrame(seen, columns=Interval._fields).to_csv(partial, index=False)
    with replacing(folder / "model.safetensors") as partial:
        safetensors.torch.save_file(server.state, partial)


def device(
    config: Config, index: int, *, on: str | None = None, progress: bool = True
) -> dict[str, Tensor]:
    """Run a device to the end; return the final weights of its units.

    Args:
        on: device of this machine that its head trains on, such as "cuda"; the CPU without.
    Raises:
        ConfigError: there is no such device, or its own network or samples are none.
        ChannelLost, Refused: see `Device.run`.
    """
    if index not in range(config.devices):
        raise ConfigError(f"no device {index}: there are 0 to {config.devices - 1}")
    own, part = config.of(index), samples_of.part_of(config, index)

    def prepare(told: dict[str, Any]) -> Job:
        units = samples_of.network(config, on)
        settings = Settings.read(dict(told["settings"]))
        if settings != config.settings(len(units)):
            raise Refused("the server's settings differ from this file's: give both the same file")
        stream = Stream(part.x, part.y, settings, index, samples_of.normal_of(part))
        return Job(settings, units, stream)

    certificates = _certificates(config, f"device-{index}")
    address = f"{config.server_address}:{config.port}"
    room = {"limit": samples_of.message_limit(config), "capacity": 2 * own.micro + 4}
    about: dict[str, Any] = {"memory_bytes": _bytes(own.memory_mib), "threads": own.threads}
    about |= {"folder": Path(config.folder), "progress": progress}
    about["network"] = " ".join(fingerprints(samples_of.network(config)))
    runner = Device(index, prepare, name=config.digest, **about)
    return runner.run(lambda: connect(address, certificates, patience_s=config.patience_s, **room))


def _choosing(
    config: Config, units: Sequence[torch.nn.Module], settings: Settings, counts: Sequence[int]
) -> Choosing:
    """Profile this machine as the server, and say what each device has to train."""
    if config.method != "pipelearn" or config.duplicate:
        raise ConfigError("profile is for method 'pipelearn' without duplicate: it chooses a cut")
    part = samples_of.server_part(config)
    [first] = Stream(part.x, part.y, settings, 0, samples_of.normal_of(part)).step(0, 1)
    options: dict[str, Any] = {"repeats": config.profile, "threads": config.threads}
    options["memory_bytes"] = _bytes(config.server_memory_mib)
    server = measure(units, first.x, first.y, **options)
    input_bytes = first.x[0].numel() * first.x.element_size()
    common: dict[str, Any] = {"least": settings.least, "input_bytes": input_bytes}
    common["contention"] = max(1.0, settings.devices * settings.threads / cores())
    workloads = [
        Workload(min(settings.batch, own), own, averages=_averages(settings, own), **common)
        for own in counts
    ]
    speeds = (config.of(at) for at in range(config.devices))
    rates = [(own.uplink_mbit, own.downlink_mbit) for own in speeds]
    given = [Link.of_rates(*own) if all(own) else None for own in rates]
    return Choosing(server, workloads, given)


def _averages(settings: Settings, samples: int) -> float:
    """Return how often the networks are averaged in an epoch of a device."""
    if settings.aggregate_every > 0:
        return steps_an_epoch(settings, samples, 1) / settings.aggregate_every
    return 1.0 if settings.aggregate_every else 1.0 / settings.epochs


def _bytes(mib: float) -> int | None:
    return int(mib * 2**20) if mib else None


def _certificates(config: Config, who: str) -> Certificates | None:
    if config.plain and config.certificates:
        raise ConfigError("plain is set and certificates are given: leave one of them out")
    if config.certificates:
        return certificates_in(config.certificates, who)
    if not config.plain:
        raise ConfigError(
            "no certificates: make some with `alkit split certs`, or set plain = true on loopback"
        )
    return None


def _show(bar: tqdm, record: RoundRecord) -> None:
    losses = [loss for own in record.losses.values() for loss in own]
    shown = {"loss": f"{sum(losses) / len(losses):.3f}"} if losses else {}
    if record.accuracy is not None:
        shown["accuracy"] = f"{record.accuracy:.3f}"
    bar.set_postfix(shown, refresh=False)
    bar.update(1)


def _say_goodbye(server: Server) -> None:
    """Wait until the devices have got the final weights, or for a while."""
    with server.condition:
        server.condition.wait_for(lambda: not server.channels, timeout=GOODBYE_S)
