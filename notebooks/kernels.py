"""Kernels for the tests of the notebooks, forked from a process that has imported torch before.

    worker of pytest -- starts --> server, imports torch once -- forks --> kernel of each notebook

A third of the time of all notebooks went on the same imports: torch, the compiler that its first
optimiser loads, scikit-learn. A kernel still imports alkit, and matplotlib, whose backend it names
before.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing.context import ForkServerProcess
from typing import Any

PRELOADED = ["torch._dynamo", "sklearn.datasets", "pandas", "ipykernel.kernelapp"]
DRIVERS = ("/dev/nvidiactl", "/dev/kfd")  # of a GPU: what a parent has opened can't be forked


def can_fork() -> bool:
    return sys.platform == "linux" and not any(map(os.path.exists, DRIVERS))


class Kernel(ForkServerProcess):
    """A kernel's process, with as much of `subprocess.Popen` as jupyter_client uses."""

    stdin = stdout = stderr = None

    def __init__(self, command: list[str], *, cwd: Any = None, env: Any = None, **_: Any) -> None:
        multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
        arguments = command[-2:]  # -f, and the connection file
        where = cwd or os.getcwd(), dict(env or os.environ)
        super().__init__(target=_serve, args=(arguments, *where))
        self.start()
        # it leads a group of its own soon; until then a signal to its group would be for us
        while self.pid and os.getpgid(self.pid) != self.pid:
            time.sleep(0.01)

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self) -> int | None:
        self.join()
        return self.exitcode

    def send_signal(self, number: int) -> None:
        if self.pid and self.exitcode is None:
            os.kill(self.pid, number)


def _serve(arguments: list[str], cwd: str, env: dict[str, str]) -> None:
    """Be the kernel that `python -m ipykernel_launcher` would be."""
    from ipykernel.kernelapp import launch_new_instance

    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    multiprocessing.set_start_method(None, force=True)  # its own processes start as a kernel's do
    threading.Thread(target=_end_with_worker, daemon=True).start()
    launch_new_instance(argv=arguments)


def _end_with_worker() -> None:
    worker = multiprocessing.parent_process()
    assert worker is not None
    worker.join()
    os.killpg(0, signal.SIGKILL)
