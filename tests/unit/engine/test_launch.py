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

from alkit import fit, launch, train_epoch
from alkit.engine.launch import RankFailed, patience
from tests.helpers import dense_model, differences, made_batches, state_of
from tests.unit.al.helpers import Spy, al_model, spied, toy

LAYERS, BATCHES = 4, 6
LIVENESS_S = 300.0


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

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x)

torch.manual_seed(0)
x, y = torch.randn(20, 4), torch.arange(20) % 3
for method in ("pipedream", "1f1b", "al_pipeline"):
    blocks = [nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4)), Own()]
    alkit.fit(blocks, (x, y), method=method, epochs=2, batch_size=8, ranks=2)
    print("trained by", method)
"""


def test_a_script_without_a_guard_is_not_run_again(tmp_path):
    """Not by ranks that it starts; and nothing is said at its end."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    said = [line for line in done.stdout.splitlines() if line.startswith("trained")]
    assert said == [f"trained by {name}" for name in ("pipedream", "1f1b", "al_pipeline")]
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


def _gone(pids):
    def lives(pid):
        return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE

    return [pid for pid in pids if not lives(pid)]


def test_ranks_end_when_the_caller_dies(tmp_path):
    script = tmp_path / "caller.py"
    script.write_text(
        "import os, time\n"
        "from alkit import launch\n"
        "def task(folder):\n"
        "    for pid in (os.getpid(), os.getppid()):\n"  # the rank, and who forked it
        "        open(f'{folder}/{pid}', 'w').close()\n"
        "    time.sleep(600)\n"
        f"launch(task, {str(tmp_path)!r})\n"
    )
    own = {**os.environ, "TMPDIR": str(tmp_path)}  # a killed caller can't tidy up
    caller = subprocess.Popen([sys.executable, str(script)], cwd=tmp_path, env=own)
    names = _until(lambda: [int(p.name) for p in tmp_path.iterdir() if p.name.isdecimal()], 3)
    caller.kill()
    caller.wait()
    _until(lambda: _gone(names), 3)


WAITS = """
import os, time
from alkit import launch

def task(folder):
    open(f"{folder}/{os.getpid()}", "w").close()
    time.sleep(600)

"""


def _ranks_of(folder):
    return [int(p.name) for p in folder.iterdir() if p.name.isdecimal()]


def _group_of(pid):
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def test_control_c_in_a_script_ends_all_and_shows_its_own_line(tmp_path):
    """A terminal sends it to all processes of the script's group."""
    script = tmp_path / "script.py"
    script.write_text(f"{WAITS}launch(task, {str(tmp_path)!r})  # here\n")
    own = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    caller = subprocess.Popen([sys.executable, script], cwd=tmp_path, **own)
    ranks = _until(lambda: _ranks_of(tmp_path), 2)
    began = time.monotonic()
    os.killpg(caller.pid, signal.SIGINT)
    _, said = caller.communicate(timeout=LIVENESS_S)
    _until(lambda: _gone(ranks), 2)
    assert time.monotonic() - began < LIVENESS_S
    assert said.rstrip().splitlines()[-1] == "KeyboardInterrupt"
    assert "# here" in said
    left = [each.pid for each in psutil.process_iter() if _group_of(each.pid) == caller.pid]
    _until(lambda: _gone(left), len(left))  # the fork server as well


def test_control_c_in_a_notebook_s_cell_ends_ranks_and_leaves_the_kernel(tmp_path):
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        asked = client.execute(f"{WAITS}launch(task, {str(tmp_path)!r})")
        ranks = _until(lambda: _ranks_of(tmp_path), 2)
        manager.interrupt_kernel()
        while (reply := client.get_shell_msg(timeout=LIVENESS_S))["parent_header"][
            "msg_id"
        ] != asked:
            continue
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        _until(lambda: _gone(ranks), 2)
        again = "assert launch(os.getpid, ranks=2)[0] > 1"
        while (  # for a moment the kernel drops what stands in line behind an error
            reply := client.execute_interactive(again, timeout=LIVENESS_S)["content"]
        )["status"] == "aborted":
            continue
        assert reply["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _trained(ranks, cuts, shorter=0, other=False):
    """Train on ranks; return this rank's number, state, losses, timeline and cuts."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    batches = made_batches(BATCHES - shorter * rank, seed=rank if other else 0)
    model = dense_model(LAYERS)
    executor, mode = ("ranks", "al_pipeline") if ranks > 1 else ("threads", "al")
    record = train_epoch(model, batches, mode, cuts=cuts, seed=3, executor=executor)
    return rank, state_of(model), record.losses, record.timeline, record.cuts


def _fitted(path=None, executor="threads", killed_at=None):
    """Fit; if told so, rank 1 dies before a batch of an epoch."""
    data = toy()
    if killed_at is not None and dist.get_rank() == 1:
        data = spied(data, Spy(data.train, fail_at=killed_at, fail=_die))
    model, mode = al_model(), "al_pipeline" if executor == "ranks" else "al"
    options = {"epochs": 3, "batch_size": 8, "seed": 1, "progress": False}
    done = fit(model, data, method=mode, checkpoint=path, **options)
    told = torch.tensor([*done.history.val_acc, done.best_epoch])
    return state_of(model) | {"told": told, "correct": done.test_correct}


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_rank_s_run_goes_on_to_the_same_bits(tmp_path):
    path = tmp_path / "run.pt"
    with pytest.raises(RankFailed, match="rank 1 died of SIGKILL"):
        launch(_fitted, path, "ranks", (1, 2))
    assert path.exists()
    expected = _fitted()
    assert all(not differences(expected, own) for own in launch(_fitted, path, "ranks"))
    assert {file.name for file in tmp_path.iterdir()} == {"run.pt", ".run.pt.lock"}


def _until(look, count):
    end_s = time.monotonic() + LIVENESS_S
    while len(found := look()) < count:
        assert time.monotonic() < end_s
        time.sleep(0.1)
    return found


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
