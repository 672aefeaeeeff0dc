"""Kernels for the tests of the notebooks, forked from a process that has imported torch before.

    worker of pytest -- starts --> server, imports torch once -- forks --> kernel of each notebook

To import torch, with the compiler that its first optimiser loads, and scikit-learn takes some 4 s
of a core; of the time of all notebooks this was a third. Whatever draws is left to the kernel,
which says how before it is imported, and so are alkit and the notebook's own folder.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any

PRELOADED = ["torch._dynamo", "sklearn.datasets", "pandas", "ipykernel.kernelapp"]
DRIVERS = ("/dev/nvidiactl", "/dev/kfd")  # of a GPU: what a parent has opened can't be forked


def can_fork() -> bool:
    return sys.platform == "linux" and not any(map(os.path.exists, DRIVERS))


class Kernel:
    """A kernel's process, with as much of `subprocess.Popen` as jupyter_client uses."""

    stdin = stdout = stderr = None

    def __init__(self, command: list[str], *, cwd: str, env: dict[str, str], **_: Any) -> None:
        context: Any = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        arguments = command[-2:], str(cwd), env  # the last two: -f, and the connection file
        self.process = context.Process(target=_serve, args=arguments)
        self.process.start()
        self.pid: int = self.process.pid
        while os.getpgid(self.pid) != self.pid:  # until then a signal to its group would be for us
            time.sleep(0.01)

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> int:
        self.process.join()
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


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
