"""A sweep on a Dask cluster of processes: what is killed runs again, and nothing else twice."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

import alkit
from alkit.data import paths
from alkit.records import cluster, results, runs
from alkit.records.cli import main
from tests.unit.records.test_runs import LIVENESS_S, wait_until, write_notebook

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")

PARAMETERS = """\
seed: int = 0
mode: str = "ok"
"""
# says who runs it, waits for a word, and records numbers that follow the seed
BODY = """\
import os, pathlib, random, time
import psutil
worker = psutil.Process().parents()[1].pid
with open(f"begun-{seed}", "a") as begun:
    print(worker, os.getpid(), file=begun)
if mode == "kill the worker":
    os.kill(worker, 9)
while not pathlib.Path("go").exists():
    time.sleep(0.05)
import alkit.data.paths
alkit.data.paths.root = lambda: pathlib.Path.cwd().parent
import alkit.records.results
run = alkit.records.results.Run("10_x")
draw = random.Random(seed)
for epoch in range(3):
    run.record("loss", draw.random(), method="al", seed=seed, extra={"epoch": epoch})
run.record("threads", os.environ["OMP_NUM_THREADS"], method="al")
run.save()
"""
MADE = ("date", "machine", "commit", "versions")  # where and when, not what


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Make a checkout with the notebook and a sweep of it, and be in it."""
    for name in ("ALKIT_RECORD", "ALKIT_RUN_SLUG", "ALKIT_RUN_ID", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)

    def make(name, grid="seed: [0, 1, 2, 3, 4, 5, 6, 7]"):
        home = tmp_path / name
        write_notebook(home / "notebooks", PARAMETERS, BODY)
        file = home / "notebooks" / "params" / "grid.yaml"
        file.parent.mkdir()
        file.write_text(f"notebook: 10_x.ipynb\ngrid: {{{grid}}}\n")
        monkeypatch.setattr(paths, "root", lambda: home)
        return file

    return make


def started(**options):
    """Start a scheduler here and workers as processes, which nannies watch."""
    place = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "threads_per_worker": 1}
    return distributed.LocalCluster(**place | {"processes": True, "n_workers": 2} | options)


@pytest.fixture
def address():
    with started() as own:
        yield own.scheduler_address


def begun(file):
    """Return (worker, kernel) of every attempt, by point."""
    found = sorted(file.parents[1].glob("begun-*"))
    lines = {path.name: path.read_text().splitlines() for path in found}
    return {name: [tuple(map(int, line.split())) for line in own] for name, own in lines.items()}


def records():
    """Return the committed records of a checkout without where and when they were made."""
    found = {path.name: json.loads(path.read_text()) for path in paths.records_dir().glob("*.json")}
    return {
        name: {key: value for key, value in own.items() if key not in MADE}
        for name, own in found.items()
    }


def swept(file, address=None, **options):
    return runs.sweep(file, record=True, progress=False, cluster=address, **options)


def go(file):
    (file.parents[1] / "go").touch()


def test_the_point_of_a_killed_worker_runs_again(checkout, address):
    """Eight records as a sweep on this machine makes them, and none is made a second time."""
    file = checkout("serial")
    go(file)
    assert list(swept(file)["state"]) == ["done"] * 8
    alone = records()
    assert len(alone) == 8

    file = checkout("cluster")
    with ThreadPoolExecutor(1) as pool:
        sweep = pool.submit(swept, file, address)
        try:
            wait_until(lambda: sweep.done() or len(begun(file)) == 2, "no two points have begun")
            assert not sweep.done(), sweep.result()
            victim, ((worker, kernel), *_) = next(iter(begun(file).items()))
            os.kill(worker, signal.SIGKILL)
        finally:
            go(file)
        points = sweep.result()
    assert list(points["state"]) == ["done"] * 8
    assert [path.name for path in points["path"]] == [f"smoke.seed={at}.ipynb" for at in range(8)]
    assert all(path.is_file() for path in points["path"])
    assert records() == alone
    attempts = begun(file)
    assert len(attempts[victim]) == 2, "the killed worker's point has not run again"
    assert sum(map(len, attempts.values())) == 9
    wait_until(lambda: not psutil.pid_exists(kernel), "the killed worker's kernel lives")

    assert list(swept(file, address)["state"]) == ["before"] * 8
    shutil.rmtree(paths.runs_dir())  # the committed records alone say as much
    assert list(swept(file, address)["state"]) == ["before"] * 8
    assert begun(file) == attempts
    assert not list(file.parents[2].rglob(f"{cluster.MARK}*"))


def test_a_point_that_kills_its_workers_fails_and_the_others_go_on(checkout, capsys):
    file = checkout("one", 'mode: ["kill the worker", ok], seed: [3]')
    go(file)
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}), started() as own:
        code = main(["sweep", str(file), "--dask", own.scheduler_address])
    said = capsys.readouterr()
    assert code == 1
    assert "1 failed" in said.out
    assert "1 done" in said.out
    assert "smoke.mode=kill-the-worker" in said.err
    assert "lost 2 workers" in said.err
    assert len(begun(file)["begun-3"]) == 3  # two of one point, one of the other


def test_an_interrupt_ends_the_points_on_the_workers(checkout, address):
    file = checkout("one")
    code = "import sys, alkit.data.paths; alkit.data.paths.root = alkit.data.paths.Path.cwd;"
    code += "from alkit.records.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "sweep", str(file), "--dask", address]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    place = {"cwd": file.parents[2], "env": environment, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **place) as command:
        wait_until(lambda: command.poll() is not None or len(begun(file)) == 2, "nothing has begun")
        command.send_signal(signal.SIGINT)
        said = command.communicate(timeout=LIVENESS_S)[1]
    assert command.returncode == 130, said
    assert said.endswith("alkit: interrupted; no process of it is left\n")
    kernels = [kernel for own in begun(file).values() for _, kernel in own]
    assert len(kernels) == 2
    assert not any(map(psutil.pid_exists, kernels))


def test_a_worker_of_another_checkout_is_refused(checkout, tmp_path, monkeypatch):
    """A worker with an alkit that differs in one comment; nothing of the sweep begins."""
    other = tmp_path / "other"
    shutil.copytree(os.path.dirname(alkit.__file__), other / "alkit")
    with open(other / "alkit" / "data" / "seeds.py", "a") as source:
        source.write("# another\n")
    file = checkout("one")
    go(file)  # what is not refused ends, and is told
    with started(n_workers=0) as own:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", own.scheduler_address]
        options = ["--host", "127.0.0.1", "--nthreads", "1", "--no-dashboard"]
        options += ["--local-directory", str(tmp_path)]
        where = os.pathsep.join([str(other), *(p for p in sys.path if p)])
        place = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": where}}
        with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, **place) as worker:
            try:
                with pytest.raises(runs.ParameterError, match="another alkit or another 10_x"):
                    swept(file, own.scheduler_address)
            finally:
                worker.terminate()
                worker.communicate(timeout=LIVENESS_S)
    assert not begun(file)
    assert not paths.records_dir().exists()


def test_a_machine_that_sees_other_files_is_refused(checkout):
    job = runs.plan_sweep(checkout("one"))[0]
    with cluster.marked(job) as place:
        cluster.check(place)
        with pytest.raises(runs.ParameterError, match=r"does not see .*runs/10_x"):
            cluster.check(dataclasses.replace(place, mark=place.mark.with_name("elsewhere")))
        write_notebook(job.notebook.parent, PARAMETERS, BODY + "\npass")
        with pytest.raises(runs.ParameterError, match="another alkit or another 10_x.ipynb"):
            cluster.check(place)
    with pytest.raises(runs.ParameterError, match="does not see"):
        cluster.check(place)
    assert not results.load().size


def test_an_address_without_a_scheduler_and_a_number_of_runs_of_one_s_own(checkout, capsys):
    words = ["sweep", str(checkout("one")), "--dask", "127.0.0.1:1"]
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        assert main(words) == 2
    assert "tcp://127.0.0.1:1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*words, "--jobs", "2"])
    assert "not allowed with argument" in capsys.readouterr().err
