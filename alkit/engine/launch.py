"""Start a function in several processes that know each other, and never lose one of them.

    caller   launch(f, ranks=2) ──► rank 0: f()  ◄──gloo──►  rank 1: f()
                 ▲                       │                        │
                 └── result or traceback, through a pipe each; printed lines, through a file each

A rank fails by raising, by dying, or by a task of the engine that takes longer than `patience_s`:
then it ends with the tracebacks of all its threads. The others are stopped. If the caller dies, its
ranks end. Python's fork server imports torch once, and a rank is forked from it.
"""

import faulthandler
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist

from alkit.base.arguments import check_whole
from alkit.engine.caller import CallerState

PRELOADED = ["torch", "torch.distributed", "torch._dynamo", "pandas", "tqdm.auto"]
DRIVERS = ("/dev/nvidiactl", "/dev/kfd")
GRACE_S = 1.0  # for the other ranks' reports after the first fault
SHOWN = 5_000  # letters of a rank's output that an error shows
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
Fault = tuple[float, int, str, str]  # when it was raised, 0 of the dead; rank, reason, details
_starting = threading.Lock()
_begun: Any = types.SimpleNamespace(value=0.0)  # of a rank: when its task began, or 0


@contextmanager
def patience() -> Iterator[None]:
    """Let the caller end this rank, with tracebacks of all threads, if the block takes too long."""
    before, _begun.value = _begun.value, time.monotonic()
    try:
        yield
    finally:
        _begun.value = before


@contextmanager
def torchrun_group() -> Iterator[None]:
    """Join the ranks that torchrun has started; leave them together at the end.

    On one machine they talk over the loopback device; on several, over the device in the variable
    GLOO_SOCKET_IFNAME. A rank that says nothing for half an hour is given up.

    Raises:
        RuntimeError: there are several machines, and the variable names no device.
    """
    import torch._dynamo  # noqa: F401  # before there is a group (pytorch issue 190489)

    if not on_several_machines():
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    elif "GLOO_SOCKET_IFNAME" not in os.environ:
        raise RuntimeError(
            "GLOO_SOCKET_IFNAME is not set, and the job has several machines: name the network"
            " device that leads from this one to the others, eth0 say (`ip address` lists them)"
        )
    dist.init_process_group("gloo")
    try:
        yield
        dist.barrier()  # nobody hangs up while another one still reads
    finally:
        dist.destroy_process_group()


def on_several_machines() -> bool:
    """Return whether torchrun has started the ranks of a job on more machines than this one."""
    ranks = os.environ.get("WORLD_SIZE", "1")
    return ranks != os.environ.get("LOCAL_WORLD_SIZE", ranks)


class RankFailed(RuntimeError):
    """A rank raised, died or hung; `details` has its traceback, or what it printed last."""

    def __init__(self, rank: int, reason: str, details: str) -> None:
        super().__init__(f"rank {rank} {reason}\n{details}".rstrip())
        self.rank, self.reason, self.details = rank, reason, details


def launch(
    function: Callable[..., Any],
    *arguments: Any,
    ranks: int = 2,
    threads: int = 1,
    patience_s: float = 600.0,
) -> list[Any]:
    """Run `function(*arguments)` in `ranks` new processes; return what each returned, in order.

    In each, `torch.distributed` is initialised (gloo, over the loopback device), and LOCAL_RANK is
    set. The function may be defined in a notebook; it and its arguments are copied.

    Args:
        threads: operator threads of each rank.
        patience_s: the longest that one task of the engine may take. Other code is not judged.
    Raises:
        RankFailed: the first rank that failed. None is left running then.
        ValueError: fewer than one rank.
    """
    check_whole(ranks=ranks)
    own = {"PYTHONUNBUFFERED": "1", "GLOO_SOCKET_IFNAME": LOOPBACK}
    task = cloudpickle.dumps(partial(CallerState.here().run, function, *arguments))
    setup = {"ranks": ranks, "threads": threads, "environment": {**os.environ, **own}, "task": task}
    crew, until_s = list[_Child](), math.inf
    with tempfile.TemporaryDirectory(prefix="alkit-ranks-") as folder:
        try:
            for rank in range(ranks):
                crew.append(_Child(rank, folder, setup))
            while time.monotonic() < until_s and not all(child.ended for child in crew):
                pipes: dict[Any, _Child] = {each.pipe: each for each in crew if not each.ended}
                for pipe in wait(list(pipes), 0.25):
                    pipes[pipe].read()
                    if pipes[pipe].fault:  # others that have lost this rank may be heard before it
                        until_s = min(until_s, time.monotonic() + GRACE_S)
                for child in crew:
                    child.show()
                    child.judge(patience_s)
            if faults := [child.fault for child in crew if child.fault]:
                raise RankFailed(*min(faults)[1:])
            return [cloudpickle.loads(child.result) for child in crew]
        finally:
            for child in crew:
                child.stop()


class _Child:
    """The caller's side of one rank."""

    def __init__(self, rank: int, folder: str, setup: dict[str, Any]) -> None:
        self.rank, self.printed = rank, Path(folder) / f"{rank}.txt"
        self.shown = self.printed.open("w+b")
        self.ended, self.result = False, b""
        self.fault: Fault | None = None
        # a GPU's driver that may be open can't be forked
        forks = sys.platform == "linux" and not any(map(os.path.exists, DRIVERS))
        context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
        context.set_forkserver_preload(PRELOADED)
        self.begun, self.hung = context.RawValue("d", 0.0), False
        self.pipe, theirs = context.Pipe(duplex=False)
        with theirs, _without_main():
            arguments = rank, folder, setup, theirs, self.begun
            self.process = context.Process(target=_rank, args=arguments)
            self.process.start()

    def read(self) -> None:
        """Take the result or the error from the pipe, or note that the process has gone."""
        self.ended = True
        try:
            self.result, self.fault = self.pipe.recv()
        except (EOFError, OSError):
            self.fault = self._died()

    def show(self) -> None:
        """Print the whole lines that the rank has printed."""
        *lines, rest = self.shown.read().split(b"\n")
        self.shown.seek(-len(rest), os.SEEK_CUR)
        for line in lines:
            print(f"[rank {self.rank}] {line.decode(errors='replace')}", flush=True)

    def judge(self, patience_s: float) -> None:
        """Abort a rank whose task takes longer than it may: it writes down where it was."""
        if (begun := self.begun.value) and time.monotonic() - begun > patience_s and not self.hung:
            self.hung = True
            os.kill(self.process.pid, signal.SIGABRT)

    def stop(self) -> None:
        """Leave no process behind, nor any that the rank has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.show()
        self.shown.close()
        self.pipe.close()

    def _died(self) -> Fault:
        self.process.join(GRACE_S)  # it may have closed its pipe and live on: it will be stopped
        code = -signal.SIGKILL if self.process.exitcode is None else self.process.exitcode
        text = self.printed.read_text(errors="replace")
        if self.hung:
            stacks = text.rpartition("Fatal Python error: ")[2]  # faulthandler's first words
            return 0.0, self.rank, "hung: a task took longer than its patience", stacks
        reason = f"died of {signal.Signals(-code).name if code < 0 else f'exit status {code}'}"
        return 0.0, self.rank, reason, text[-SHOWN:]


def _rank(rank: int, folder: str, setup: dict[str, Any], pipe: Connection, begun: Any) -> None:
    """Run the task in a rank, where and as its caller would, and report the result or the fault."""
    global _begun
    os.setsid()
    _begun = begun
    printed = os.open(f"{folder}/{rank}.txt", os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(printed, stream)
    faulthandler.enable()
    multiprocessing.set_start_method(None, force=True)  # its own processes start as the caller's
    os.environ.clear()
    os.environ.update(setup["environment"], LOCAL_RANK=str(rank))
    threading.Thread(target=_end_with_caller, daemon=True).start()
    result, fault = b"", None
    try:
        # copies of the server's generators are the same in all ranks; Python sees to its own
        torch.seed()
        np.random.seed()  # noqa: NPY002
        torch.set_num_threads(setup["threads"])
        store = dist.FileStore(f"{folder}/store", setup["ranks"])  # a file, so no port is fixed
        dist.init_process_group("gloo", store=store, rank=rank, world_size=setup["ranks"])
        result = cloudpickle.dumps(cloudpickle.loads(setup["task"])())
    except BaseException as error:  # of any kind: the caller raises it
        reason = f"raised {type(error).__name__}: {error}"
        fault = time.monotonic(), rank, reason, traceback.format_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    pipe.send((result, fault))
    # no tidy end: threads may still wait in gloo for a rank that has gone
    os._exit(1 if fault else 0)


def _end_with_caller() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # a rank was started by one
    wait([parent.sentinel])
    os.killpg(0, signal.SIGKILL)


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep a rank from running the caller's script again: needed parts of it travel by value."""
    with _starting:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
