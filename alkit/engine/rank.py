"""A rank's side of `alkit.launch`: `python -m alkit.engine.rank FD` reads its task from a pipe."""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

from alkit.engine import heartbeat

REPORT_S = 0.25


def main(fd: int) -> None:
    """Run the task that a pipe brings, where and as its caller would, and say what became of it."""
    pipe, lock = Connection(fd), threading.Lock()
    # the caller asks a rank that hangs where it is
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    setup, task = pipe.recv(), pipe.recv_bytes()
    os.environ.clear()
    os.environ.update(setup["environment"])
    os.chdir(setup["directory"])
    if not sys.flags.safe_path:
        sys.path[0] = setup["directory"]  # as of python -m
    threading.Thread(target=_report, args=(pipe, lock), daemon=True).start()
    try:
        _join(setup)
        function, arguments = cloudpickle.loads(task)
        said: tuple[Any, ...] = ("result", cloudpickle.dumps(function(*arguments)))
    except BaseException as error:  # whatever it is, the caller raises it
        said = ("error", f"{type(error).__name__}: {error}", traceback.format_exc())
    with lock:
        pipe.send(said)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # no tidy end: threads may still wait in gloo for a rank that has gone
    os._exit(0 if said[0] == "result" else 1)


def _report(pipe: Connection, lock: threading.Lock) -> None:
    """Tell the caller what this process does; end with it."""
    while True:
        last = heartbeat.last()
        now = ("", True, 0.0) if last is None else _told(last)
        try:
            with lock:
                pipe.send(("beat", *now))
        except OSError:
            os.killpg(0, signal.SIGKILL)
        time.sleep(REPORT_S)


def _told(last: heartbeat.Beat) -> tuple[str, bool, float]:
    return last.label, last.waiting, time.monotonic() - last.since_s


def _join(setup: dict[str, Any]) -> None:
    """Form the group of all ranks; they find each other through a file, so no port is fixed."""
    # after the first report: torch takes seconds to import
    import torch
    import torch.distributed as dist

    torch.set_num_threads(setup["threads"])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    store = dist.FileStore(str(Path(setup["folder"]) / "store"), setup["ranks"])
    own = {"rank": setup["rank"], "world_size": setup["ranks"]}
    dist.init_process_group(setup["backend"], store=store, **own)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(int(sys.argv[1]))
