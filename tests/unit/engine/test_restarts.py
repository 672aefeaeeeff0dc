"""A run under torchrun goes on when a rank dies, and on fewer machines when one of them does.

ranks     0 1 2          0 1 2               0 1
agents    A B C  ──►  B and rank 1 die  ──►  A C, from the last whole epoch
store     of a process of its own, which outlives every agent
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests import fitted, machines

STORE = """
import sys, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""
SOON = "is_host=0,last_call_timeout=2,keep_alive_interval=1"


@contextmanager
def store() -> Iterator[int]:
    """Serve the agents' store in a process of its own; yields its port."""
    command = [sys.executable, "-c", STORE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=machines.environment(), **pipes) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def three(port: int, *script: str, **variables: str) -> list[tuple[int, str]]:
    """Run a script by three agents of a rank each; return how they ended, and what they said."""
    line = ["--nnodes=2:3", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d"]
    line += [f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=run", f"--rdzv-conf={SOON}"]
    own = machines.environment(GLOO_SOCKET_IFNAME="lo", **variables)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [*machines.torchrun(*line, "--local-addr=127.0.0.1"), *script]
    agents = [subprocess.Popen(command, env=own, **pipes) for _ in range(3)]
    try:
        said = [agent.communicate(timeout=machines.LIMIT_S)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()
    return [(agent.returncode, text) for agent, text in zip(agents, said, strict=True)]


def whole(method: str, ranks: int) -> str:
    """Return the digest of a run that nothing interrupts."""
    return fitted.digest(fitted.fit(method, ranks=ranks), losses=False)


@pytest.mark.machines
def test_a_killed_rank_is_started_again(tmp_path):
    """Each method's run loses a rank once, and ends in the bits of one that nothing interrupted."""
    methods = "pipedream", "pipelearn", "elastic", "dtp"
    own = {"RUN": str(tmp_path), "DIE_AT": "1:6", "restarts": len(methods)}
    done = machines.on_one(fitted.__file__, *methods, **own)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {path.stem for path in tmp_path.glob("*.died")} == {*methods}
    said = fitted.digests(done.stdout)
    assert said == {method: dict.fromkeys("01", whole(method, 2)) for method in methods}


SOAK = [pytest.param(*case, marks=pytest.mark.soak) for case in (("1f1b", 2), ("dtp", 1))]


@pytest.mark.machines
@pytest.mark.parametrize(("method", "rank"), [("al_pipeline", 0), *SOAK])
def test_a_killed_machine_is_not_needed(method, rank, tmp_path):
    own = {"RUN": str(tmp_path), "DIE_AT": f"{rank}:6", "DIE_WITH": "agent"}
    with store() as port:
        ended = three(port, fitted.__file__, method, **own)
    assert sorted(code for code, _ in ended) == [-signal.SIGKILL, 0, 0], ended
    said = fitted.digests("".join(text for _, text in ended))
    assert said == {method: dict.fromkeys("01", whole(method, 3))}
