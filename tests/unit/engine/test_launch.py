"""Processes: the bits of one thread, and a rank that fails is named and leaves nobody behind."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from jupyter_client.manager import start_new_kernel

from alkit import launch, train_epoch
from alkit.engine.launch import RankFailed, patience
from tests.helpers import dense_model, differences, made_batches, state_of

LAYERS, BATCHES = 4, 6
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


def _trained(ranks, cuts, shorter=0, other=False):
    """Train on ranks; return this rank's number, state, losses, timeline and cuts."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    batches = made_batches(BATCHES - shorter * rank, seed=rank if other else 0)
    model = dense_model(LAYERS)
    executor, mode = ("ranks", "al_pipeline") if ranks > 1 else ("threads", "al")
    record = train_epoch(model, batches, mode, cuts=cuts, seed=3, executor=executor)
    return rank, state_of(model), record.losses, record.timeline, record.cuts


@pytest.mark.parametrize(("ranks", "cuts"), [(2, None), (3, [1, 3])])
def test_the_bits_of_one_thread_on_every_rank(ranks, cuts):
    """By a notebook's function, which travels with what is around it."""
    _, expected, losses, _, _ = _trained(1, None)
    found = launch(lambda given: _trained(ranks, given), cuts, ranks=ranks)
    assert [rank for rank, *_ in found] == list(range(ranks))
    for _, state, own, timeline, used in found:
        assert not differences(expected, state)
        assert torch.equal(losses, own)
        assert len(used) == ranks - 1
        kinds = [(i.kind, i.stage, i.batch) for i in timeline.intervals]
        assert len(set(kinds)) == len(kinds) == 3 * LAYERS * BATCHES


@pytest.mark.parametrize(
    ("options", "text"),
    [({"shorter": 2}, "different numbers of batches"), ({"other": True}, "other labels")],
)
def test_ranks_with_different_batches_are_told(options, text):
    with pytest.raises(RankFailed, match=text):
        launch(lambda: _trained(2, [2], **options))


def _family():
    """Processes that this one has started, but for what forks ranks: that stays, and is one."""
    found = psutil.Process().children(recursive=True)
    alive = [each for each in found if each.status() != psutil.STATUS_ZOMBIE]
    python = ("forkserver", "resource_tracker")
    servers = [p for p in alive if any(name in word for name in python for word in p.cmdline())]
    assert len(servers) <= 2
    return {each.pid for each in alive} - {each.pid for each in servers}


def _about():
    drawn = float(torch.rand(())), random.random()
    drawn += (np.random.random_sample(),)  # noqa: NPY002
    own = os.environ.get("ALKIT_ANY"), os.getcwd()
    return os.getppid(), os.getsid(0) == os.getpid(), own, drawn


def test_a_rank_is_forked_from_what_has_imported_torch(monkeypatch, tmp_path):
    """With the environment and the folder of its caller; and none draws what another one does."""
    first = launch(_about)
    monkeypatch.setenv("ALKIT_ANY", "here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none")  # ranks of one machine don't read it
    second = launch(_about)
    assert {server for server, *_ in first} == {server for server, *_ in second}
    assert all(leads for _, leads, *_ in first + second)
    assert {own for *_, own, _ in second} == {("here", str(tmp_path))}
    assert len({number for *_, drawn in first + second for number in drawn}) == 3 * 4
    os.kill(first[0][0], signal.SIGKILL)
    _until(lambda: _gone([first[0][0]]), 1)
    [third] = launch(_about, ranks=1)
    assert third[0] != first[0][0]


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
    (folder / "clock").write_text(str(time.monotonic()))
    if how == "raise":
        raise ZeroDivisionError("by design")
    if how == "hang":
        with patience():
            time.sleep(600)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def _slow_between_tasks():
    for idle_s in (0.0, 0.0, 1.2, 0.0):
        with patience():
            time.sleep(0.3)
        time.sleep(idle_s)


def test_only_a_task_is_judged_by_patience():
    launch(_slow_between_tasks, ranks=1, patience_s=0.8)


@pytest.mark.parametrize(("how", "reason", "details"), [
    ("raise", "raised ZeroDivisionError: by design", "in _fails"),
    ("kill", "died of SIGKILL", ""),
    ("hang", "hung: a task took longer", "in _fails"),
])  # fmt: skip
def test_a_fault_is_named_and_nobody_is_left(how, reason, details, tmp_path):
    """Nor anybody that the rank has started."""
    before = _family()
    with pytest.raises(RankFailed) as failed:
        launch(_fails, how, tmp_path, patience_s=2.0)
    assert time.monotonic() - float((tmp_path / "clock").read_text()) < LIVENESS_S
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


def test_control_c_in_a_script_ends_all_and_shows_its_own_line(tmp_path):
    """A terminal sends it to all processes of the script's group."""
    caller, others = _waiting(tmp_path)
    os.killpg(caller.pid, signal.SIGINT)
    _, said = caller.communicate(timeout=LIVENESS_S)
    _until(lambda: _gone(others), 3)
    assert said.rstrip().splitlines()[-1] == "KeyboardInterrupt"
    assert "# here" in said


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


REFUSED = [
    (lambda: launch(print, ranks=0), "ranks is 0"),
    (lambda: train_epoch(dense_model(2), made_batches(1), "al_fm", executor="ranks"),
     "ranks are for al_pipeline"),
    (lambda: train_epoch(dense_model(2), made_batches(1), executor="rank"), "executor is 'rank'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_bad_requests(call, message):
    with pytest.raises((RuntimeError, ValueError), match=message):
        call()
