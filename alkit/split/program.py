"""The programs of split learning: torchrun's arguments, and one call of `alkit.fit` on every rank.

alkit split server run.toml           on the server, rank 0
alkit split device run.toml -i 0      on a device, rank 1

torchrun starts a party that has died again, and all others with it; the open round is lost.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import torch.nn.functional as F

from alkit.base.files import replacing
from alkit.engine.launch import LOOPBACK, torchrun_group
from alkit.engine.trainer import Record
from alkit.split import data as samples
from alkit.split import results
from alkit.split.half import state_of
from alkit.split.settings import Config, ConfigError

RESTARTS = 3  # of a party, before it gives up
MEET_S = 600  # for all parties to come
PASSED = """epochs seed threads augment lr momentum aggregate_every partition alpha data_size
    profile uplink_mbit downlink_mbit""".split()  # by their own names


def command(config: Config, index: int | None, rank: Sequence[str]) -> list[str]:
    """Return the command that runs a party, the server without an index.

    Args:
        rank: the command of its rank, for `python -m`.
    Raises:
        ConfigError: there is no such device.
    """
    if index is not None and index not in range(config.devices):
        raise ConfigError(f"no device {index}: there are 0 to {config.devices - 1}")
    hosts = f"is_host={int(index is None)},read_timeout={MEET_S},join_timeout={MEET_S}"
    meeting = f"--rdzv-endpoint={config.server_address}:{config.port}"
    crew = f"--nnodes={config.devices + 1}", "--nproc-per-node=1", f"--max-restarts={RESTARTS}"
    options = *crew, "--rdzv-backend=c10d", meeting, f"--rdzv-conf={hosts}", "--rdzv-id=alkit"
    return [sys.executable, "-m", "torch.distributed.run", *options, "-m", *rank]


def environment(config: Config) -> dict[str, str]:
    """Return the variables of a party's processes: loopback unless the file says else."""
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if config.server_address in ("127.0.0.1", "localhost"):
        own["GLOO_SOCKET_IFNAME"] = LOOPBACK
    return {**os.environ, **own}


def run(config: Config, index: int | None, fit: Callable[..., Record], **options: Any) -> None:
    """Run a party's rank to the end, from a checkpoint in the folder if one is there.

    The server leaves results, and the model.

    Args:
        fit: `alkit.fit`; options: device and progress, which no other party is told.
    """
    folder, data, start_s = Path(config.folder), samples.loaded(config), time.perf_counter()
    # who is which rank is ours to say, and they meet at the server; torchrun numbers as they come
    os.environ |= {"RANK": str(0 if index is None else index + 1), "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": config.server_address, "MASTER_PORT": str(config.port + 1)}
    options |= {name: getattr(config, name) for name in PASSED}
    options |= {"cuts": list(config.cuts)} if config.cuts else {}
    if config.validate:
        options |= {"validation": data.validation, "metrics": {"loss": F.cross_entropy}}
    with torchrun_group():
        record = fit(
            samples.network(config, data),
            data.train,
            test=data.test if config.test else None,
            method=config.method,
            workers=config.devices,
            batch_size=config.batch,
            micro=config.micro[0],
            checkpoint=folder / "server.pt",
            events=str(folder / "events.csv"),
            **options,
        )
        if index is None:
            total_s = time.perf_counter() - start_s
            seen = results.read(folder / "events.csv", config.devices)
            frame = results.table(config.name, record, seen, total_s)
            results.write(folder, frame, record, {"config": asdict(config), "total_s": total_s})
            with replacing(folder / "model.safetensors") as partial:
                safetensors.torch.save_file(state_of(record.model), partial)
    if index is None:
        (folder / "server.pt").unlink(missing_ok=True)  # the run is over
