"""Processes: a rank that fails is named and leaves nobody behind, nor does an interrupt."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
import torch.distributed as dist
from jupyter_client.manager import start_new_kernel

from alkit import launch, train_epoch
from alkit.engine.launch import RankFailed, patience
from tests.helpers import dense_model, made_batches

LIVENESS_S = 300.0


def _until(look, count):
    end_s = time.monotonic() + LIVENESS_S
    while len(found := look()) < count:
        assert time.monotonic() < end_s
        time.sleep(0.1)
    return found


def _gone(pids):
    def lives(pid):
        return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE

    return [pid for pid in pids if not lives(pid)]


def _trained(shorter=0, other=False):
    """Train a rank on fewer batches than the other one, or on others."""
    rank = dist.get_rank()
    batches = made_batches(6 - shorter * rank, seed=rank if other else 0)
    train_epoch(dense_model(4), batches, "al_pipeline", cuts=[2], executor="ranks")


@pytest.mark.parametrize(
    ("options", "text"),
    [({"shorter": 2}, "different numbers of batches"), ({"other": True}, "other labels")],
)
def test_ranks_with_different_batches_are_told(options, text):
    with pytest.raises(RankFailed, match=text):
        launch(lambda: _trained(**options))


def _family():
    """Processes that this one has started, but for what forks ranks: that stays, and is one."""
    found = psutil.Process().children(recursive=True)
    alive = [each for each in found if each.status() != psutil.STATUS_ZOMBIE]
    python = ("forkserver", "resource_tracker")
    servers = [p for p in alive if any(name in word for name in python for word in p.cmdline())]
    assert len(servers) <= 2
    return {each.pid for each in alive} - {each.pid for each in servers}


SCRIPT = """
import alkit, torch
from torch import nn

class Own(nn.Linear):
    def forward(self, x):
        return super().forward(x)

torch.manual_seed(0)
x, y = torch.randn(20, 4), torch.arange(20) % 3
for method in ("1f1b", "al_pipeline"):
    blocks = [nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4)), Own(4, 3)]
    alkit.fit(blocks, (x, y), method=method, epochs=2, batch_size=8, ranks=2)
    print("trained by", method)
"""


def test_a_script_without_a_guard_is_not_run_again(tmp_path):
    """Not by ranks that it starts; and nothing is said at its end."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    said = [line for line in done.stdout.splitlines() if line.startswith("trained")]
    assert said == ["trained by 1f1b", "trained by al_pipeline"]
    assert "semaphore" not in done.stderr


def _fails(how, folder):
    """Rank 1 fails in its third task and notes when; rank 0 waits for it."""
    if dist.get_rank() == 0:
        dist.recv(torch.zeros(1), 1)
    (folder / "child").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
    if how == "raise":
        raise ZeroDivisionError("by design")
    if how == "hang":
        with patience():
            time.sleep(600)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


FAULTS = [
    ("raise", "raised ZeroDivisionError: by design", "in _fails"),
    ("kill", "died of SIGKILL", ""),
    ("hang", "hung: a task took longer", "in _fails"),
]


@pytest.mark.parametrize(("how", "reason", "details"), FAULTS)
def test_a_fault_is_named_and_nobody_is_left(how, reason, details, tmp_path):
    """Nor anybody that the rank has started."""
    before = _family()
    with pytest.raises(RankFailed) as failed:
        launch(_fails, how, tmp_path, patience_s=2.0)
    assert failed.value.rank == 1
    assert reason in failed.value.reason
    assert details in failed.value.details
    assert _family() <= before
    _until(lambda: _gone([int((tmp_path / "child").read_text())]), 1)


WAITS = """
import os, time
from alkit import launch

def task(folder):
    for pid in (os.getpid(), os.getppid()):  # the rank, and who forked it
        open(f"{folder}/{pid}", "w").close()
    time.sleep(600)

launch(task, FOLDER)  # here
"""


def _waiting(folder):
    """Start a script whose ranks wait; return it, and the ranks and what forks them."""
    script = folder / "script.py"
    script.write_text(WAITS.replace("FOLDER", repr(str(folder))))
    own = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True, "cwd": folder}
    own["env"] = {**os.environ, "TMPDIR": str(folder)}  # a killed caller can't tidy up
    return subprocess.Popen([sys.executable, script], **own), _until(lambda: _pids(folder), 3)


def _pids(folder):
    return [int(p.name) for p in folder.iterdir() if p.name.isdecimal()]


def test_ranks_end_when_the_caller_dies(tmp_path):
    caller, others = _waiting(tmp_path)
    caller.kill()
    caller.communicate()
    _until(lambda: _gone(others), 3)


def test_control_c_in_a_notebook_s_cell_ends_ranks_and_leaves_the_kernel(tmp_path):
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        asked = client.execute(WAITS.replace("FOLDER", repr(str(tmp_path))))
        ranks = _until(lambda: _pids(tmp_path), 3)
        manager.interrupt_kernel()
        reply = {"parent_header": {}}
        while reply["parent_header"].get("msg_id") != asked:
            reply = client.get_shell_msg(timeout=LIVENESS_S)
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        _until(lambda: _gone(ranks), 2)
        status, again = "aborted", "assert launch(os.getpid, ranks=2)[0] > 1"
        while status == "aborted":  # the kernel drops what stands in line behind an error
            status = client.execute_interactive(again, timeout=LIVENESS_S)["content"]["status"]
        assert status == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
