"""Ranks that torchrun starts on this machine, over loopback."""

import os
import subprocess
import sys

from alkit.base.paths import root

__all__ = ["LIMIT_S", "environment", "on_one", "run", "torchrun"]

LIMIT_S = 900  # only a hang takes so long


def torchrun(*options: str) -> list[str]:
    """Return the command."""
    return [sys.executable, "-m", "torch.distributed.run", *options]


def environment(**more: str) -> dict[str, str]:
    """Return the variables of a process that has alkit and a core, and may be started again."""
    own = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return {**os.environ, "PYTHONPATH": str(root()), **own, **more}


def run(*command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, and keep what it says."""
    kept = {"capture_output": True, "text": True, "check": False}
    return subprocess.run(command, env=environment(**variables), timeout=LIMIT_S, **kept)


def on_one(
    *script: str, ranks: int = 2, restarts: int = 0, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a script as ranks of this machine, over loopback."""
    options = "--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"
    return run(*torchrun(*options), *script, GLOO_SOCKET_IFNAME="lo", **variables)
