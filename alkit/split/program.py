"""The programs of split learning: arguments of torchrun, and one call of `alkit.fit` on every rank.

alkit split server run.toml           on the server, rank 0
alkit split device run.toml -i 0      on a device, rank 1

torchrun starts a party that has died again, and all others with it; the open round is lost. Every
party reads its own copy of the set, and builds the network by itself.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

from alkit.base.files import replacing
from alkit.base.seeds import generator_for
from alkit.data import datasets
from alkit.data.parts import DataSet
from alkit.engine.device import devices_named
from alkit.engine.launch import LOOPBACK, torchrun_group
from alkit.engine.trainer import Record
from alkit.split import results
from alkit.split.half import SGD, state_of
from alkit.split.networks import build
from alkit.split.published import read
from alkit.split.settings import Config

RUN = "alkit-split"  # of torchrun
RESTARTS = 3  # of a party, before it gives up
MEET_S = 600  # for all parties to come
PASSED = """epochs seed threads augment lr aggregate_every data_size profile uplink_mbit
    downlink_mbit""".split()  # by their own names
SMALL = ("VGG5", "VGG8")  # networks for pictures of less than 32 x 32


def loaded(config: Config) -> DataSet:
    """Return the set, with as many test samples as are to count, drawn by the seed."""
    wide = config.model not in SMALL
    sides = {"mnist": {"side": 32 if wide else 28}, "digits": {"size": 32 if wide else 8}}
    found = datasets.load(config.data, **sides.get(config.data, {}))
    if 0 < config.test_size < len(found.test):
        draw = generator_for(config.seed, "test")
        rows = torch.randperm(len(found.test), generator=draw)[: config.test_size]
        found = replace(found, test=found.test.take(rows))
    return found


def network(config: Config, data: DataSet) -> list[nn.Module]:
    """Return the units with their initial weights, the same for all parties."""
    _, channels, side, _ = data.test.x.shape
    sizes = {"channels": channels, "side": side}
    return build(config.model, data.num_classes, norm=config.norm, seed=config.seed, **sizes)


def add(commands: Any) -> None:
    """Add `split` to the parsers of `alkit`."""
    parser = commands.add_parser("split", help="split learning between devices and a server")
    parts = parser.add_subparsers(required=True, metavar="COMMAND")
    server = parts.add_parser("server", help="run the server of a configuration")
    device = parts.add_parser("device", help="run one device of a configuration")
    device.add_argument("-i", "--index", metavar="N", type=int, required=True, help="from 0")
    for part in (server, device):
        part.set_defaults(command=_command, index=None)
        part.add_argument("config", type=Path, help="TOML or JSON")
        part.add_argument("--folder", metavar="DIR", help="for results and checkpoints")
        part.add_argument("--on", metavar="DEVICE", help='where it trains: "cuda" (the CPU)')
        part.add_argument("--quiet", action="store_true", help="no progress bar")


def _command(options: argparse.Namespace) -> None:
    """Be the rank of a party, or become torchrun, which runs this very command as one."""
    changes = {} if options.folder is None else {"folder": options.folder}
    config, index = read(options.config, **changes), options.index
    if index is not None and index not in range(config.devices):
        raise ValueError(f"no device {index}: there are 0 to {config.devices - 1}")
    if options.on is not None:
        devices_named(options.on)
    if os.environ.get("TORCHELASTIC_RUN_ID") == RUN:
        run(config, index, options.front.fit, device=options.on, progress=not options.quiet)
        print(f"{config.folder}/results.csv" if index is None else f"device {index} is done")
        return
    hosts = f"is_host={int(index is None)},read_timeout={MEET_S},join_timeout={MEET_S}"
    meeting = f"--rdzv-endpoint={config.server_address}:{config.port}"
    crew = f"--nnodes={config.devices + 1}", "--nproc-per-node=1", f"--max-restarts={RESTARTS}"
    torchrun = sys.executable, "-m", "torch.distributed.run", *crew, "--rdzv-backend=c10d", meeting
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if config.server_address in ("127.0.0.1", "localhost"):
        own["GLOO_SOCKET_IFNAME"] = LOOPBACK
    rank = f"--rdzv-conf={hosts}", f"--rdzv-id={RUN}", "-m", "alkit", *sys.argv[1:]
    sys.stdout.flush()
    os.execve(sys.executable, [*torchrun, *rank], os.environ | own)


def run(config: Config, index: int | None, fit: Callable[..., Record], **options: Any) -> None:
    """Run the rank of a party to the end, from a checkpoint in the folder if one is there.

    The server leaves results, and the model. Only this party gets the options of `alkit.fit`.
    """
    folder, data, start_s = Path(config.folder), loaded(config), time.perf_counter()
    # we number the ranks, and they meet at the server; torchrun would number them as they come
    os.environ |= {"RANK": str(0 if index is None else index + 1), "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": config.server_address, "MASTER_PORT": str(config.port + 1)}
    options |= {name: getattr(config, name) for name in PASSED}
    options |= {"cuts": list(config.cuts)} if config.cuts else {}
    if config.validate:
        options |= {"validation": data.validation, "metrics": {"loss": F.cross_entropy}}
    with torchrun_group():
        record = fit(
            network(config, data),
            data.train,
            test=data.test if config.test else None,
            method=config.method,
            workers=config.devices,
            optimizer=SGD,
            batch_size=config.batch,
            micro=config.micro,
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
