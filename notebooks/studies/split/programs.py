"""A server and devices as processes on this machine, over loopback or over shaped links.

    with Links(2, up_mbit=10, down_mbit=25) as links:
        outcome = run({"model": "VGG5", "devices": 2, "cut": 1, "micro": 10}, folder, links)
    outcome.iteration_s, outcome.table, outcome.timeline

All processes have ended when `run` returns, whatever happens.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import mean, median
from typing import Any

import pandas as pd

from alkit.schedule.timeline import Timeline
from alkit.split import results
from studies.split.links import SERVER_ADDRESS, Links


@dataclass(frozen=True)
class Outcome:
    """What the processes left.

    Attributes:
        table: see `alkit.split.results`.
        plain: losses by round, and history.
        timeline: of all lanes.
    """

    table: pd.DataFrame
    plain: dict[str, Any]
    timeline: Timeline

    @property
    def iteration_s(self) -> float:
        """The median seconds of an iteration on device 0, but for the first of each round."""
        own = [i for i in self.timeline.intervals if i.resource == "device 0"]
        ends_s = [i.end_s for i in own if i.kind == "update"]
        rounds = accumulate(len(each["losses"]["0"]) for each in self.plain["rounds"])
        first = {0, *rounds}
        spans = enumerate(zip(ends_s, ends_s[1:], strict=False), 1)
        return median(end - before for step, (before, end) in spans if step not in first)

    @property
    def round_s(self) -> float:
        """Seconds of a round, the average included."""
        return mean(self.plain["history"]["train_s"])


def run(
    config: Mapping[str, Any],
    folder: Path,
    links: Links | None = None,
    *,
    limit_s: float = 600.0,
) -> Outcome:
    """Run a configuration to its end.

    Args:
        config: keys of a file, without addresses.
        folder: a new one for all files.
        limit_s: seconds after which it is given up.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, count = folder / "run.json", int(config.get("devices", 1))
    address = {} if links is None else {"server_address": SERVER_ADDRESS}
    path.write_text(json.dumps({**config, "folder": str(folder), "port": _free_port(), **address}))
    crew = [_start("server", path, links), *(_start(at, path, links) for at in range(count))]
    try:
        _wait(crew, folder, limit_s)
    finally:
        for process in crew:
            process.terminate()  # torchrun ends what it has started
            process.wait()
    plain = json.loads((folder / "results.json").read_text())
    table = pd.read_csv(folder / "results.csv")
    return Outcome(table, plain, results.read(folder / "events.csv", count))


def _start(who: int | str, path: Path, links: Links | None) -> "subprocess.Popen[bytes]":
    words = [who] if who == "server" else ["device", "-i", str(who)]
    command = [sys.executable, "-m", "alkit", "split", words[0], str(path), *words[1:], "--quiet"]
    own = {"OMP_NUM_THREADS": "1"}
    if links is not None:
        own["GLOO_SOCKET_IFNAME"] = "s0" if who == "server" else "d0"
    with (path.parent / f"{who}.log").open("wb") as said:
        return subprocess.Popen(
            command if links is None else links.inside(who, command),
            stdout=said,
            stderr=subprocess.STDOUT,
            env=os.environ | own,
        )


def _wait(crew: "list[subprocess.Popen[bytes]]", folder: Path, limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while True:
        codes = [process.poll() for process in crew]
        if not any(code is None for code in codes) and not any(codes):
            return
        if any(codes) or time.monotonic() > end_s:
            said = [f"{log.stem}: {log.read_text()[-2000:]}" for log in folder.glob("*.log")]
            raise RuntimeError("\n".join([f"exit codes {codes} after {limit_s} s at most", *said]))
        time.sleep(0.05)


def _free_port() -> int:
    """Return a port that is free, before one that most likely is."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
