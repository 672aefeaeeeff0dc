"""Runs in batch: what is refused before the first one, what they are told, and how they end."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from alkit.base import paths
from alkit.command import contents, main
from alkit.lab import batch, results
from tests.unit.lab.helpers import BODY, write_notebook, write_preset

LIVENESS_S = 300  # only a hang takes so long


def test_a_plan_layers_defaults_preset_and_overrides(notebook):
    write_preset(notebook, "lr: 2\nseed: 4\n")
    job = batch.plan(notebook, "cpu", {"seed": 7, "mode": "raise"})
    expected = {"preset": "cpu", "mode": "raise", "seed": 7, "lr": 2.0, "seeds": [0, 1]}
    assert job.parameters == expected | {"depth": None}
    run = {"notebook": "10_x", "preset": "cpu", "parameters": job.parameters}
    assert job.folder == paths.root() / "runs" / f"10_x.cpu.{results.identity(run)}"
    # a value that is given and is the preset's is no change
    same = batch.plan(notebook, "cpu", {"seed": 4, "depth": None})
    assert same.folder == batch.plan(notebook, "cpu", {}).folder
    with pytest.raises(ValueError, match="10_x.ipynb: no parameter 'sed' .did you mean 'seed'"):
        batch.plan(notebook, "cpu", {"sed": 7})


def test_a_sweep_goes_on_after_each_kind_of_failure_and_runs_nothing_twice(notebook, monkeypatch):
    """Four runs, one of which ends well, is recorded, and counts the next time."""
    text = "notebook: 10_x.ipynb\ngrid:\n  mode: [raise, die, leave, ok]\n"
    file = write_preset(notebook, text, "sweep")
    jobs = batch.plan_sweep(file, threads=1)
    ended = batch.sweep(jobs, 2, record=True, force=False)
    raised, died, left, good = [state for _, state in ended]
    assert raised.startswith("In [3]:\n")
    assert "RuntimeError: the reason the reason" in raised
    assert len(raised) < 1100
    assert died.startswith("DeadKernelError: ")
    assert left == "the notebook ended itself by SystemExit"
    assert good == "done"
    assert [path.name for path in jobs[0].folder.iterdir()] == ["10_x.partial.ipynb"]
    job = jobs[3]
    assert {path.name for path in job.folder.iterdir()} == {"10_x.ipynb", "record.json"}
    (run,) = results.rows_of()
    assert run["parameters"] == job.parameters
    assert list(results.load()["value"]) == [90, "1"]

    # no run starts any more
    monkeypatch.setattr(batch, "ProcessPoolExecutor", lambda *_, **__: pytest.fail("it starts"))
    write_notebook(notebook.parent, body=BODY + "\npass")
    assert batch.sweep([job], record=True, force=False) == [(job, "before")]
    job.target.unlink()  # the tables are enough
    assert batch.sweep([job], record=True, force=False) == [(job, "before")]
    job.target.touch()
    monkeypatch.setattr(results, "TABLES", "none")  # a kill between the end of a run and its row
    assert batch.sweep([job], record=True, force=False) == [(job, "before")]
    assert len(results.load()) == 2
    job.target.unlink()
    for options in ({"record": False, "force": False}, {"record": True, "force": True}):
        with pytest.raises(pytest.fail.Exception, match="it starts"):
            batch.sweep([job], **options)


def test_nothing_survives_the_command_however_it_ends(tmp_path):
    """A violent end in the middle of a cell, then a polite one."""
    path = write_notebook(tmp_path / "notebooks")
    started = path.parent / "started"
    # an installed package keeps its runs below the working directory
    code = "import sys, alkit.base.paths; alkit.base.paths.root = alkit.base.paths.Path.cwd;"
    code += "from alkit.command import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "run", str(path), "-p", "mode=slow"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

    def end(number):
        started.unlink(missing_ok=True)
        command = subprocess.Popen(
            words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
        )
        wait_until(lambda: started.is_file() and started.read_text())
        family = psutil.Process(command.pid).children(recursive=True)
        assert int(started.read_text()) in [process.pid for process in family]
        command.send_signal(number)
        said = command.communicate(timeout=LIVENESS_S)[1]
        wait_until(lambda: not any(each.is_running() for each in family))
        assert "Traceback" not in said, said
        return command.returncode, said

    assert end(signal.SIGKILL)[0] == -signal.SIGKILL
    code, said = end(signal.SIGTERM)
    assert code == 130
    assert said.endswith("alkit: interrupted; no process of it is left\n")
    assert [each.name for each in tmp_path.glob("runs/*/*")] == ["10_x.partial.ipynb"]


def wait_until(condition):
    deadline = time.monotonic() + LIVENESS_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_command_tells_how_runs_ended(notebook, monkeypatch, capsys):
    file = write_preset(notebook, "notebook: 10_x.ipynb\ngrid:\n  mode: [ok, raise]\n", "sweep")
    states = iter([["done", "In [3]"], ["before", "done"], ["done"]])
    ended = lambda jobs, *_, **__: [*zip(jobs, next(states), strict=True)]  # noqa: E731
    monkeypatch.setattr(batch, "sweep", ended)
    assert main(["sweep", str(file)]) == 1
    assert capsys.readouterr().out == "1 done, 1 failed\n"
    assert main(["sweep", str(file)]) == 0
    assert main(["run", str(notebook), "--preset", "smoke"]) == 0
    assert capsys.readouterr().out.endswith("10_x.ipynb\n")


def test_the_list_is_the_index(capsys):
    assert main(["list"]) == 0
    assert all(each["title"] in capsys.readouterr().out for each in contents()[:1])
