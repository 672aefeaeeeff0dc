"""A process that has imported torch, and becomes a rank in a tenth of a second when it is asked.

    caller ── a rank's pipes ──► server: torch is imported, one thread ── fork ──► rank
       ▲                            │
       └──── number, exit status ───┘   through a pipe a rank

A rank that begins with nothing imports for seconds. The server of a caller begins with the first
rank, and ends with the caller or when it has had nothing to do for minutes. Nothing of it computes,
so a rank finds torch as it is after its import. Where that is not sure, on other systems than Linux
and beside the driver of a GPU, which an import may have called, a rank begins with nothing.
"""

import atexit
import contextlib
import importlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from typing import IO, Any, NoReturn, Protocol

from alkit.engine import rank

IDLE_S = 300.0
DRIVERS = "/dev/nvidiactl", "/dev/kfd"
STATUS = struct.Struct("i")
IMPORTS = ("torch.distributed", "torch._dynamo")  # optimisers import the second one
DRAWN = "alkit.figures"  # which a rank never needs
# of the environment, libraries read these as they are loaded: with others it takes another server
READ_AT_IMPORT = tuple("CUDA GOMP KMP LD MALLOC MKL OMP OPENBLAS PYTHON PYTORCH TORCH".split())


class Process(Protocol):
    """What a caller needs of a rank's process: some of `subprocess.Popen`."""

    pid: int
    stdout: IO[str] | None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, or minus the signal; `subprocess.TimeoutExpired`, if it runs."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless it has ended."""


def start(pipe: socket.socket, environment: Mapping[str, str]) -> Process:
    """Start `alkit.engine.rank` in a session of its own, with its end of the pipe to the caller.

    Args:
        environment: all of the rank's, as far as libraries read it when they are imported.
    """
    if sys.platform == "linux" and not any(map(os.path.exists, DRIVERS)):
        return _forked(pipe, environment)
    return subprocess.Popen(
        [sys.executable, "-m", "alkit.engine.rank", str(pipe.fileno())],
        pass_fds=[pipe.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # so that what it starts can be stopped with it
        env=dict(environment),
    )


class _Forked:
    """A process that another one has forked, and says the exit status of."""

    def __init__(self, pid: int, status: int, printed: int) -> None:
        self.pid, self._status, self._lock = pid, status, threading.Lock()
        self._code: int | None = None
        self.stdout: IO[str] | None = open(printed, errors="replace")

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            if self._code is None:
                if not wait([self._status], timeout):
                    raise subprocess.TimeoutExpired(f"rank {self.pid}", timeout or 0.0)
                try:
                    self._code = _number(self._status)
                except ProcessLookupError:  # it was killed, and nobody knows of its rank any more
                    self._code = -signal.SIGKILL
                os.close(self._status)
            return self._code

    @property
    def ended(self) -> bool:
        """Whether it has, and with it, by the server, all that it had started."""
        return self._code is not None or bool(wait([self._status], 0))

    def send_signal(self, sig: int) -> None:
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)


def signal_group(process: Process, sig: int) -> None:
    """Send a signal to a rank and to what it has started; to nobody, if all of it has ended."""
    if isinstance(process, _Forked) and process.ended:
        return  # its number may be somebody else's by now
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, sig)


class _Server:
    """The caller's side: starts the process with the first rank, and again when it has to."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.processes: list[subprocess.Popen[bytes]] = []  # the last one, and those it replaced
        self.begun = False
        self.link: socket.socket | None = None
        self.key: dict[str, str] = {}
        self.modules: list[str] = []
        self.written_ns = 0
        atexit.register(self._end)
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Leave the server to the process that this one is a copy of."""
        self.lock, self.processes, self.begun = threading.Lock(), [], False
        self._hang_up()

    def _hang_up(self) -> None:
        if self.link is not None:
            self.link.close()

    def fork(self, pipe: socket.socket, environment: Mapping[str, str]) -> _Forked:
        key = {k: v for k, v in environment.items() if k.startswith(READ_AT_IMPORT)}
        with self.lock:
            self.processes = [each for each in self.processes if each.poll() is None]
            for _ in range(2):  # it may end itself as it is asked
                if not self.begun or self.key != key or self._rewritten():
                    self._begin(environment)
                    self.begun, self.key = True, key
                try:
                    return self._ask(pipe)
                except OSError:
                    self.begun = False
        raise RuntimeError("the server that forks ranks ends at once: see what it printed")

    def _rewritten(self) -> bool:
        """Tell whether somebody has written at alkit's sources since they were imported."""
        return self.written_ns != _written_ns(self.modules)

    def _end(self) -> None:
        """Let the server go, at the caller's exit."""
        self._hang_up()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):  # a rank of some thread runs
                process.wait(1)

    def _begin(self, environment: Mapping[str, str]) -> None:
        self._hang_up()
        self.link, theirs = socket.socketpair()
        loaded = [name for name in [*sys.modules] if name.partition(".")[0] == "alkit"]
        self.modules = [name for name in loaded if not name.startswith(DRAWN)]
        self.written_ns = _written_ns(self.modules)
        command = [sys.executable, "-m", "alkit.engine.fork_server", str(theirs.fileno())]
        with theirs:
            process = subprocess.Popen(
                [*command, *self.modules],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env=dict(environment),
            )
        self.processes.append(process)

    def _ask(self, pipe: socket.socket) -> _Forked:
        assert self.link is not None  # it has begun
        status, theirs = os.pipe()
        printed, printer = os.pipe()
        with contextlib.ExitStack() as ours:
            ours.callback(os.close, status)
            ours.callback(os.close, printed)
            try:
                socket.send_fds(self.link, [b"r"], [pipe.fileno(), printer, theirs])
            finally:
                os.close(printer)
                os.close(theirs)
            pid = _number(status)
            ours.pop_all()
        return _Forked(pid, status, printed)


def _written_ns(modules: Sequence[str]) -> int:
    """Return when the last of the sources of modules was written."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in modules)
    there = (path for path in files if path and os.path.exists(path))
    return max((os.stat(path).st_mtime_ns for path in there), default=0)


def _number(status: int) -> int:
    """Read the number that the server says next of a process: its own, then its exit status."""
    if not (said := os.read(status, STATUS.size)):
        raise ProcessLookupError("the server that forks ranks has gone")
    return int(STATUS.unpack(said)[0])


_forked = _Server().fork


def main(link: socket.socket, modules: Sequence[str]) -> None:
    """Import, then fork a rank per request, and say how each ended, until the caller has gone."""
    for name in (*IMPORTS, *modules):
        with contextlib.suppress(Exception):  # whatever it is, a rank that needs it is told
            importlib.import_module(name)
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})  # the caller may have blocked it
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, int] = {}  # where to say how a rank ended
    watched: list[Any] = [link, woken]
    ready: list[Any] = watched
    while running or (ready and link in watched):
        ready = wait(watched, IDLE_S)
        if woken in ready:
            os.read(woken, 512)
            _tell(running)
        if link in ready:
            word, pipes, *_ = socket.recv_fds(link, 1, 3)
            if not word:
                watched.remove(link)
                continue
            with warnings.catch_warnings():  # 3.12's, of BLAS's threads: they know of forks
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = _fork() if len(pipes) == 3 else None
            if pid is None:  # no memory, or no descriptors: the caller sees its pipes closed
                for each in pipes:
                    os.close(each)
                continue
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (link.detach(), woken, waker, *running.values()):
                    os.close(each)
                _become_rank(*pipes)
            running[pid] = pipes[2]
            _say(pipes[2], pid)
            for each in pipes[:2]:
                os.close(each)


def _fork() -> int | None:
    try:
        return os.fork()
    except OSError:
        return None


def _tell(running: dict[int, int]) -> None:
    """Say how those ranks ended that have."""
    for pid in [*running]:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            with contextlib.suppress(ProcessLookupError):  # while nobody else can have its number
                os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            pipe = running.pop(pid)
            _say(pipe, os.waitstatus_to_exitcode(status))
            os.close(pipe)


def _say(pipe: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody asks any more
        os.write(pipe, STATUS.pack(number))


def _become_rank(pipe: int, printer: int, status: int) -> NoReturn:
    """Do what a new process would: a session of its own, so that what it starts ends with it."""
    os.setsid()
    os.close(status)
    for stream in (1, 2):
        os.dup2(printer, stream)
    os.close(printer)
    for library in ("torch", "numpy.random"):  # unseeded, all ranks would draw the same
        if library in sys.modules:
            sys.modules[library].seed()
    importlib.invalidate_caches()  # folders may have come since the server began
    try:
        rank.main(pipe)
    except Exception:  # the caller has gone before it said what to do
        traceback.print_exc()
    finally:
        os._exit(1)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
    os._exit(0)  # at once: to tidy up what was imported takes a second
