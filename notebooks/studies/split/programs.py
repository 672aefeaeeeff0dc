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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from alkit.schedule.timeline import Interval, Timeline
from alkit.split.schedule import LANES
from studies.split.links import SERVER_ADDRESS, Links


@dataclass(frozen=True)
class Outcome:
    """What the processes left.

    Attributes:
        table: see `alkit.split.results`.
        rounds: plain records.
        timeline: of all lanes.
        seconds: from the first process's start to the last one's end.
    """

    table: pd.DataFrame
    rounds: list[dict[str, Any]]
    timeline: Timeline
    seconds: float

    @property
    def iterations_s(self) -> list[float]:
        """Seconds of every iteration but the first of each round, on device 0."""
        ends = [
            (i.batch, i.end_s)
            for i in self.timeline.intervals
            if i.resource == "device 0" and i.kind == "update"
        ]
        first = {orders[0][3] for one in self.rounds if (orders := one["orders"])}
        return [
            end - before
            for (_, before), (step, end) in zip(ends, ends[1:], strict=False)
            if step not in first
        ]

    @property
    def iteration_s(self) -> float:
        """The median of them."""
        return median(self.iterations_s)


def run(
    config: Mapping[str, Any],
    folder: Path,
    links: Links | None = None,
    *,
    limit_s: float = 600.0,
) -> Outcome:
    """Run a configuration to its end.

    Args:
        config: keys of `alkit.split.config`, without addresses.
        folder: a new one for all files.
        limit_s: seconds after which it is given up.
    Raises:
        RuntimeError: a process failed, or was not done in time; says what it printed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.json"
    path.write_text(json.dumps(dict(config) | _addresses(folder, links)))
    start_s = time.perf_counter()
    count = int(config.get("devices", 1))
    commands = [("server", ["server", "--quiet"])]
    commands += [(at, ["device", "--quiet", "--index", str(at)]) for at in range(count)]
    processes = [_start(words, who, path, folder, links) for who, words in commands]
    try:
        _wait(processes, folder, limit_s)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    seconds = time.perf_counter() - start_s
    events = pd.read_csv(folder / "events.csv")
    lanes = [f"{lane} {at}" for at in range(count) for lane in LANES]
    seen = (Interval(*row) for row in events.itertuples(index=False))
    plain = json.loads((folder / "results.json").read_text())
    table = pd.read_csv(folder / "results.csv")
    return Outcome(table, plain["rounds"], Timeline.of(seen, lanes), seconds)


def _addresses(folder: Path, links: Links | None) -> dict[str, Any]:
    common: dict[str, Any] = {"folder": str(folder), "port": _free_port()}
    return common if links is None else common | {"server_address": SERVER_ADDRESS}


def _start(
    words: Sequence[str], who: int | str, path: Path, folder: Path, links: Links | None
) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "alkit", "split", words[0], "--config", str(path), *words[1:]]
    with (folder / f"{who}.log").open("wb") as said:
        return subprocess.Popen(
            command if links is None else links.inside(who, command),
            stdout=said,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )


def _wait(processes: "Sequence[subprocess.Popen[bytes]]", folder: Path, limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while True:
        codes = [process.poll() for process in processes]
        if not any(code is None for code in codes) and not any(codes):
            return
        if any(codes) or time.monotonic() > end_s:
            said = [f"{log.stem}: {log.read_text()[-2000:]}" for log in folder.glob("*.log")]
            raise RuntimeError("\n".join([f"exit codes {codes} after {limit_s} s at most", *said]))
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
