"""A server and devices as processes on this machine: forked over loopback, by torchrun over links.

    with Links(2, up_mbit=10, down_mbit=25) as links:
        run = {"model": "VGG5", ..., "fit": {"method": "pipelearn", "cuts": [1], "micro": 10}}
        outcome = started(run, 2, folder, links)
    outcome.iteration_s, outcome.table, outcome.timeline

All processes have ended when `started` returns, whatever happens.
"""

import io
import json
import os
import runpy
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from subprocess import STDOUT, Popen
from typing import Any

import pandas as pd
import torch.distributed as dist

from alkit.base.paths import root
from alkit.engine.launch import launch
from alkit.schedule.timeline import Timeline
from alkit.split import results
from studies.split.links import SERVER_ADDRESS, Links

SCRIPT = root() / "docs" / "tasks" / "split_at_home.py"
LIMIT_S = 600.0  # for a run over links


@dataclass(frozen=True)
class Outcome:
    """What the processes left.

    Attributes:
        table: see `alkit.split.results`.
        history: a row a round.
        timeline: of all lanes.
    """

    table: pd.DataFrame
    history: pd.DataFrame
    timeline: Timeline

    @property
    def iteration_s(self) -> float:
        """The median seconds of an iteration on device 0, but for those with an average."""
        seen = self.timeline.intervals
        ends_s = [i.end_s for i in seen if (i.resource, i.kind) == ("device 0", "update")]
        averages_s = [i.start_s for i in seen if i.kind == "average"]
        spans = (
            span for span in pairwise(ends_s) if not any(span[0] < a < span[1] for a in averages_s)
        )
        return median(end - begun for begun, end in spans)

    @property
    def round_s(self) -> float:
        """Seconds of a round, the average included."""
        return float(self.history.train_s.mean())


def started(
    run: Mapping[str, Any], devices: int, folder: Path, links: Links | None = None
) -> Outcome:
    """Run a file of docs/tasks/split_at_home.py to its end.

    Args:
        run: the keys of the file, but for the folder.
        folder: a new one for all files.
        links: between torchrun's processes; None: loopback, in forked ones, which start at once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, port = folder / "run.json", _free_port()
    path.write_text(json.dumps({**run, "folder": str(folder)}))
    if links is None:
        launch(_as_torchrun, port, path, ranks=devices + 1)
    else:
        crew = [_start(rank, devices + 1, port, path, links) for rank in range(devices + 1)]
        try:
            _wait(crew, folder)
        finally:
            for process in crew:
                process.terminate()  # torchrun ends what it has started
                process.wait()
    table, history = (pd.read_csv(folder / f"{each}.csv") for each in ("results", "history"))
    return Outcome(table, history, results.read(folder / "events.csv", devices))


def _as_torchrun(port: int, path: Path) -> None:
    """Run the script in a rank, with the variables that torchrun would set."""
    ranks = str(dist.get_world_size())
    own = {"RANK": str(dist.get_rank()), "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    dist.destroy_process_group()  # the script joins by itself
    os.environ.update(own, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sys.argv = [str(SCRIPT), str(path)]
    with redirect_stdout(io.StringIO()):  # of its table: it is read from the file
        runpy.run_path(str(SCRIPT))


def _start(rank: int, ranks: int, port: int, path: Path, links: Links) -> "Popen[bytes]":
    options = f"--nnodes={ranks} --node-rank={rank} --master-addr={SERVER_ADDRESS}"
    options += f" --master-port={port}"
    torchrun = [sys.executable, "-m", "torch.distributed.run", *options.split()]
    command = links.inside(rank - 1 if rank else "server", [*torchrun, str(SCRIPT), str(path)])
    own = {"GLOO_SOCKET_IFNAME": "d0" if rank else "s0", "PYTHONPATH": str(root())}
    own["OMP_NUM_THREADS"] = "1"
    with (path.parent / f"{rank}.log").open("wb") as said:
        return Popen(command, stdout=said, stderr=STDOUT, env=os.environ | own)


def _wait(crew: "list[Popen[bytes]]", folder: Path) -> None:
    end_s = time.monotonic() + LIMIT_S
    while True:
        codes = [process.poll() for process in crew]
        if not any(code is None for code in codes) and not any(codes):
            return
        if any(codes) or time.monotonic() > end_s:
            said = [f"{log.stem}: {log.read_text()[-2000:]}" for log in folder.glob("*.log")]
            raise RuntimeError("\n".join([f"exit codes {codes} after {LIMIT_S} s at most", *said]))
        time.sleep(0.05)


def _free_port() -> int:
    """Return a port that is free, before one that most likely is."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
