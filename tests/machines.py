"""Machines that are made up: two network namespaces with a cable between them, a disk each.

As far as sockets and files can tell they are two: `DISK` is another folder on each.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from alkit.base.paths import root

__all__ = ["ADDRESSES", "LIMIT_S", "can_be_made", "environment", "on_one", "on_two", "torchrun"]

ADDRESSES = "10.231.77.1", "10.231.77.2"
LIMIT_S = 900  # only a hang takes so long


def torchrun(*options: str) -> list[str]:
    """Return the command."""
    return [sys.executable, "-m", "torch.distributed.run", *options]


def environment(**more: str) -> dict[str, str]:
    """Return the variables of a process that has alkit and a core, and may be started again."""
    own = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return {**os.environ, "PYTHONPATH": str(root()), **own, **more}


def on_one(*script: str, restarts: int = 0, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a script as two ranks of this machine, over loopback."""
    options = "--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}"
    return subprocess.run(
        [*torchrun(*options), *script],
        env=environment(GLOO_SOCKET_IFNAME="lo", **variables),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def on_two(options: str, *script: str, disks: Path, **variables: str) -> tuple[list[int], str]:
    """Run a script as a rank on each of two machines; return how they ended, and what they said.

    Args:
        options: of torchrun, with RANK for the machine's number.
        disks: a folder; each machine finds its own disk at `disks / "disk"`, and begins there.
    """
    with _two_machines() as names:
        crew = [
            _started(
                name,
                rank,
                [*torchrun(*options.replace("RANK", str(rank)).split()), *script],
                disks,
                variables,
            )
            for rank, name in enumerate(names)
        ]
        try:
            said = "".join(one.communicate(timeout=LIMIT_S)[0] for one in crew)
        finally:
            for one in crew:
                one.kill()
                one.communicate()
    return [one.returncode for one in crew], said


def can_be_made() -> bool:
    """Whether this process may make network namespaces."""
    if shutil.which("ip") is None:
        return False
    name = f"alkit{os.getpid()}probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return made.returncode == 0


def _started(
    name: str, rank: int, command: Sequence[str], disks: Path, variables: dict[str, str]
) -> "subprocess.Popen[str]":
    own, disk = disks / f"disk{rank}", disks / "disk"
    for folder in (own, disk):
        folder.mkdir(exist_ok=True)
    mounted = f'mount --bind "{own}" "{disk}" && cd "{disk}" && exec "$@"'  # seen by nobody else
    return subprocess.Popen(
        ["ip", "netns", "exec", name, "sh", "-c", mounted, "sh", *command],
        env=environment(GLOO_SOCKET_IFNAME="eth0", TMPDIR=str(disk), **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@contextmanager
def _two_machines() -> Iterator[tuple[str, str]]:
    """Make two namespaces, joined by a cable whose ends are both called eth0."""
    names = (f"alkit{os.getpid()}a", f"alkit{os.getpid()}b")
    first, second = names
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", first, "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", second)
        for name, address in zip(names, ADDRESSES, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
