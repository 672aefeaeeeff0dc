"""Start a function in several processes that know each other, and never lose one of them.

    caller   launch(f, ranks=2) ──► rank 0: f()  ◄──gloo──►  rank 1: f()
                 ▲   ▲                 │                        │
                 │   └── signs of life, printed lines, result or traceback, through a pipe each
                 └────── the first fault: named with its traceback, and every rank is stopped

A rank fails by raising, by dying, or by a missed heartbeat: its process says nothing any more, or
it is in one task for too long. Ranks that only wait for another one don't count as hanging. If the
caller dies, its ranks end themselves.
"""

import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle

from alkit.engine.folders import Home
from alkit.engine.fork_server import signal_group, start
from alkit.engine.interface import VARIABLE, choose_interface

log = logging.getLogger(__name__)

GRACE_S = 1.0  # for the other ranks' reports after the first fault, and to end when asked to
LINES = 40  # of a rank's output that an error shows
LOOKS = 10  # half seconds that a hanging rank has to say where it is
DISCONNECTED = ("Connection closed", "Connection reset", "Connection refused", "Broken pipe")


@contextmanager
def torchrun_group(backend: str = "gloo", timeout_s: float = 1800.0) -> Iterator[None]:
    """Join the ranks that torchrun has started, over gloo; leave them together at the end.

    torch.distributed's own calls do the same but for one thing: what optimisers import on first use
    takes the default group of that moment as a default argument, and keeps it and its threads alive
    to the end of the interpreter, where they may abort or hang (pytorch issue 190489). So that is
    imported before there is a group.

    Args:
        backend: of torch.distributed, see `alkit.engine.rank_device.backend_for`.
        timeout_s: the longest wait for a word from another rank, which may have lost its power.
    Raises:
        InterfaceError: no network device fits; lists those there are.
        RuntimeError: torchrun has not started this process, or may not start it again.
    """
    if "RANK" not in os.environ:
        raise RuntimeError(
            "torchrun has not started this process: torchrun --nproc-per-node=2 SCRIPT does, and"
            " alkit.launch(function, ranks=2) needs none"
        )
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if shared and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        # ranks that are started again would find the addresses of dead ones (pytorch issue 135712)
        raise RuntimeError(
            "with --max-restarts, torchrun needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before it and"
            " --standalone or --rdzv-backend=c10d behind it, or ranks that are started again don't"
            " find each other"
        )
    import torch._dynamo  # noqa: F401
    import torch.distributed as dist

    device = os.environ[VARIABLE] = choose_interface()
    if os.environ.get("RANK", "0") == "0":
        log.info("gloo on %s, %s ranks", device, os.environ.get("WORLD_SIZE", "1"))
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    try:
        yield
        dist.barrier()  # nobody hangs up while another one still reads
    finally:
        dist.destroy_process_group()


class RankFailed(RuntimeError):
    """A rank raised, died or hung.

    Attributes:
        rank: which one.
        reason: "raised ...", "died of SIGKILL", "hangs in ...".
        details: its traceback, or the last lines that it printed.
    """

    def __init__(self, rank: int, reason: str, details: str) -> None:
        super().__init__(f"rank {rank} {reason}\n{details}".rstrip())
        self.rank, self.reason, self.details = rank, reason, details


def launch(
    function: Callable[..., Any],
    *arguments: Any,
    ranks: int = 2,
    threads: int = 1,
    heartbeat_s: float = 60.0,
    environment: Mapping[str, str] | None = None,
    backend: str = "gloo",
) -> list[Any]:
    """Run `function(*arguments)` in `ranks` new processes, joined by gloo over the loopback device.

    In each, `torch.distributed` is initialised. The function may be defined in a notebook. It and
    its arguments are copied; what it returns comes back, so return what you want to keep. The first
    ranks of a process take seconds to start, while torch is imported, later ones a fraction of one
    (`alkit.engine.fork_server`; on Linux, without a GPU's driver).

    Args:
        threads: operator threads of each rank.
        heartbeat_s: the longest that one task of the engine may take before its rank counts as
            hanging. Code that runs no task is not judged by it.
        environment: variables to set in the ranks, which also have LOCAL_RANK.
        backend: of torch.distributed, see `alkit.engine.rank_device.backend_for`.
    Returns:
        What each rank returned, in order.
    Raises:
        RankFailed: the first rank that failed. None is left running then.
        ValueError: fewer than one rank.
    """
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}: it must be at least 1")
    task = cloudpickle.dumps(_as_here(function, *arguments))
    with Home(kind="ranks") as home:
        crew: list[_Child] = []
        try:
            for rank in range(ranks):
                setup = {"rank": rank, "ranks": ranks, "threads": threads, "backend": backend}
                setup |= {"folder": str(home.path), "directory": os.getcwd()}
                own = {"PYTHONUNBUFFERED": "1", **_paths(), "LOCAL_RANK": str(rank)}
                setup |= {"environment": {**os.environ, **own, **(environment or {})}}
                crew.append(_Child(setup, task))
            return _watch(crew, heartbeat_s)
        finally:
            _stop(crew)


def _as_here(function: Callable[..., Any], *arguments: Any) -> tuple[Callable[..., Any], tuple]:
    """Return what a rank calls: with the caller's autocast and defaults, if torch has any yet."""
    if "torch" not in sys.modules:
        return function, arguments
    from alkit.engine.caller import CallerState

    return CallerState.here().run, (function, *arguments)


class _Child:
    """The caller's side of one rank."""

    def __init__(self, setup: dict[str, Any], task: bytes) -> None:
        self.rank = setup["rank"]
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self.process = start(theirs, setup["environment"])
            except BaseException:  # interrupted: a rank that begins later sees that nobody waits
                ours.close()
                raise
        self.pipe = Connection(ours.detach())
        self.printed: deque[str] = deque(maxlen=LINES)
        self.lines = 0  # printed so far
        self.printer = threading.Thread(target=self._print, daemon=True)
        self.printer.start()
        self.heard_s = time.monotonic()
        self.label, self.waits, self.task_s = "", True, 0.0
        self.ended = False
        self.result: Any = None
        self.fault: tuple[str, str] | None = None
        self.secondary = False  # the fault only says that another rank has gone
        try:
            self.pipe.send(setup)
            self.pipe.send_bytes(task)
        except OSError:
            self.died()

    def read(self) -> None:
        """Take a message from the pipe: a sign of life, the result, or an error."""
        try:
            kind, *content = self.pipe.recv()
        except (EOFError, OSError):
            self.died()
            return
        self.heard_s = time.monotonic()
        if kind == "beat":
            self.label, self.waits, self.task_s = content
        elif kind == "result":
            self.result, self.ended = pickle.loads(content[0]), True
        else:
            text, details = content
            self.secondary = any(words in text for words in DISCONNECTED)
            self.fault = f"raised {text}", details

    def died(self) -> None:
        """Note that the process has gone."""
        if self.ended or self.fault:
            return
        try:
            code = self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL  # it has closed its pipe and lives on: it will be stopped
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        self.printer.join(GRACE_S)
        self.fault = f"died of {name}", self._tail()

    def look(self, heartbeat_s: float) -> None:
        """Note a missed heartbeat."""
        silent_s = time.monotonic() - self.heard_s
        if silent_s > heartbeat_s:
            self.fault = f"has been silent for {silent_s:.0f} s", self._traceback()
        elif not self.waits and self.task_s > heartbeat_s:
            self.fault = f"hangs in {self.label}, for {self.task_s:.0f} s now", self._traceback()

    def _traceback(self) -> str:
        """Ask the process where it is, and wait until it has said so; a stopped one never does."""
        before = said = self.lines
        self.process.send_signal(signal.SIGUSR1)
        for _ in range(LOOKS):
            time.sleep(0.5)
            if said == self.lines > before:
                break
            said = self.lines
        return "".join([*self.printed][before - said :]) if said > before else self._tail()

    def _tail(self) -> str:
        return "".join(self.printed)

    def _print(self) -> None:
        assert self.process.stdout is not None  # it was started with a pipe
        with self.process.stdout as lines:
            for line in lines:
                self.printed.append(line)
                self.lines += 1
                print(f"[rank {self.rank}] {line}", end="", flush=True)


def _watch(crew: Sequence[_Child], heartbeat_s: float) -> list[Any]:
    """Read what the ranks say until all have ended, or one has failed."""
    while not all(child.ended for child in crew):
        _read(crew, 0.25)
        for child in _running(crew):
            child.look(heartbeat_s)
            if child.fault:
                break  # to ask it took seconds in which nobody was heard
        if any(child.fault for child in crew):
            raise _first_fault(crew)
    return [child.result for child in crew]


def _first_fault(crew: Sequence[_Child]) -> RankFailed:
    """Name the rank that failed by itself: its neighbours' lost connections may be heard first."""
    until_s = time.monotonic() + GRACE_S
    while time.monotonic() < until_s and _running(crew):
        if any(child.fault and not child.secondary for child in crew):
            break
        _read(crew, 0.1)
    failed = [(child, child.fault) for child in crew if child.fault]
    first, fault = next((own for own in failed if not own[0].secondary), failed[0])
    return RankFailed(first.rank, *fault)


def _read(crew: Sequence[_Child], timeout_s: float) -> None:
    pipes: dict[Any, _Child] = {child.pipe: child for child in _running(crew)}
    for pipe in wait(list(pipes), timeout_s):
        pipes[pipe].read()


def _running(crew: Sequence[_Child]) -> list[_Child]:
    return [child for child in crew if not child.ended and not child.fault]


def _stop(crew: Sequence[_Child]) -> None:
    """Leave no process behind, nor any that a rank has started."""
    for ask in (signal.SIGTERM, signal.SIGKILL):
        until_s = time.monotonic() + GRACE_S
        for child in crew:
            if not child.ended or ask is signal.SIGKILL:
                signal_group(child.process, ask)
        for child in crew:
            try:
                child.process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
    for child in crew:
        child.process.wait()
        child.printer.join(GRACE_S)
        child.pipe.close()


def _paths() -> dict[str, str]:
    """Let a rank import what the caller can."""
    return {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
