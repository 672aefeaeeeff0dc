"""Runs in batch: what is refused before the first one, what they are told, and how they end."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import nbformat
import psutil
import pytest

from alkit.data import paths
from alkit.records import batch, results, tables
from alkit.records.parameters import ParameterError
from tests.unit.records.helpers import BODY, write_notebook, write_preset

LIVENESS_S = 300  # only a hang takes so long


def test_a_plan_layers_defaults_preset_and_overrides(notebook):
    write_preset(notebook, "lr: 2\nseed: 4\n")
    job = batch.plan(notebook, "cpu", {"seed": 7, "mode": "raise"})
    expected = {"preset": "cpu", "mode": "raise", "seed": 7, "lr": 2.0, "seeds": [0, 1]}
    assert job.parameters == expected | {"depth": None}
    assert job.folder == paths.runs_dir() / "10_x.cpu.mode=raise_seed=7"
    assert (job.target.name, job.partial.name) == ("10_x.ipynb", "10_x.partial.ipynb")
    # a value that is given and is the preset's is no change
    assert batch.plan(notebook, "cpu", {"seed": 4, "depth": None}).folder.name == "10_x.cpu"
    with pytest.raises(ParameterError, match="10_x.ipynb: no parameter 'sed', did you mean 'seed'"):
        batch.plan(notebook, "cpu", {"sed": 7})
    with pytest.raises(ParameterError, match="timeout_s is 0: give 1 or more"):
        batch.plan(notebook, "cpu", {}, timeout_s=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grid: {seed: [1]}", "s.yaml needs a notebook, .*; it has grid"),
        ("notebook: 10_x.ipynb", "needs a notebook, .* either a grid"),
        ("notebook: 10_x\ngrid: {seed: [1]}\npoints: [{}]", "either a grid .* or points"),
        ("notebook: 10_x\ngrid: {seed: 1}", "needs .* a grid of"),
        ("notebook: 10_x\ngrid: {seed: []}", "needs .* a grid of"),
        ("notebook: 10_x\npoints: {seed: 1}", "needs .* points, a list"),
        ("notebook: 10_x\npoints: []", "needs .* points, a list"),
        ("notebook: 10_x\npoints: [{seed: 1}, {seed: a}]", "seed must be int, not 'a'"),
        ("notebook: 10_x\npoints: [{lr: 1}, {lr: 1.0}]", "a point twice: 10_x.smoke.lr=1.0"),
        ("notebook: 10_x\npoints: [{seed: 0}, {}]", "a point twice: 10_x.smoke"),
        ("notebook: 10_x\ngrid: {a: [1]}\ngrid: {b: [2]}", "each name once"),
        ("notebook: 10_x\npreset: cpu\ngrid: {seed: [1]}", "no preset 'cpu'"),
        ("notebook: 10_x\ngrids: {seed: [1]}", "it has notebook, grids"),
        ("notebook: 11_y\ngrid: {seed: [1]}", "no notebook 11_y"),
    ],
)
def test_a_bad_sweep_is_refused_before_its_first_run(notebook, tmp_path, text, message):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ParameterError, match=message):
        batch.plan_sweep(tmp_path / "s.yaml")


def test_points_of_a_grid_are_all_combinations(notebook, tmp_path):
    text = "notebook: 10_x\npreset: smoke\ngrid: {seed: [0, 1], mode: [ok, die]}"
    (tmp_path / "s.yaml").write_text(text)
    planned = batch.plan_sweep(tmp_path / "s.yaml", threads=1)
    values = [(job.parameters["seed"], job.parameters["mode"]) for job in planned]
    assert values == [(0, "ok"), (0, "die"), (1, "ok"), (1, "die")]


def test_the_kernel_gets_absolute_paths_all_parameters_and_threads_if_asked(notebook, monkeypatch):
    monkeypatch.setenv("ALKIT_DATA", "somewhere")
    monkeypatch.setenv("MPLBACKEND", "Agg")  # in which a notebook shows no figure
    monkeypatch.setenv("PYTHONPATH", "/mine")
    job = batch.plan(notebook, "smoke", {"seed": 5})
    told = batch.environment(job)
    assert told["ALKIT_DATA"] == os.path.abspath("somewhere")
    assert told["ALKIT_RUN_FOLDER"] == str(paths.runs_dir() / "10_x.smoke.seed=5")
    assert json.loads(told["ALKIT_RUN_PARAMETERS"]) == job.parameters
    assert "OMP_NUM_THREADS" not in told
    assert told["MPLBACKEND"].endswith("inline")
    first, *_, last = told["PYTHONPATH"].split(os.pathsep)
    assert os.path.isfile(os.path.join(first, "pyproject.toml"))
    assert last == "/mine"
    job = batch.plan(notebook, "smoke", {}, threads=3)
    assert batch.environment(job)["OMP_NUM_THREADS"] == "3"


def test_a_sweep_goes_on_after_each_kind_of_failure_and_runs_nothing_twice(notebook, monkeypatch):
    """Four runs, one of which ends well, is recorded, and counts the next time."""
    text = "notebook: 10_x.ipynb\ngrid:\n  mode: [raise, die, leave, ok]\n"
    file = write_preset(notebook, text, "sweep")
    jobs = batch.plan_sweep(file, threads=1)
    ended = batch.execute_all(jobs, 2, record=True, force=False)
    assert [result.state for result in ended] == ["failed", "failed", "failed", "done"]
    assert [result.cell for result in ended] == [4, 4, 4, None]
    raised, died, left, _ = [result.error for result in ended]
    assert "RuntimeError: the reason the reason" in raised
    assert "\x1b" not in raised
    assert died == "the kernel died; mostly because memory ran out"
    assert left == "the notebook ended itself: SystemExit 0"
    assert [path.name for path in jobs[0].folder.iterdir()] == ["10_x.partial.ipynb"]
    good = jobs[3]
    assert {path.name for path in good.folder.iterdir()} == {"10_x.ipynb", "record.json"}
    (run,) = tables.runs()
    assert run["parameters"] == good.parameters
    assert run["run"] == tables.identity("10_x", "smoke", good.parameters)
    for rows in (results.read(good.target), results.load()):
        assert list(rows["value"]) == [90, "1"]

    # no run starts any more
    monkeypatch.setattr(batch, "_execute", lambda job, *_: pytest.fail(f"{job} is executed"))
    write_notebook(notebook.parent, body=BODY + "\npass")
    again = {"record": True, "force": False}
    assert batch.execute_all([good], **again) == [batch.Result(good, "before", run["run"])]
    good.target.unlink()  # the tables are enough
    assert batch.execute_all([good], **again) == [batch.Result(good, "before", run["run"])]
    with pytest.raises(pytest.fail.Exception, match="is executed"):
        batch.execute_all([good], record=False, force=False)
    with pytest.raises(pytest.fail.Exception, match="is executed"):
        batch.execute_all([good], record=True, force=True)


def test_a_finished_run_counts_for_its_own_parameters_and_its_record_is_taken(checkout, notebook):
    job = batch.plan(notebook, "smoke", {"seed": 5})
    record = results.Run("10_x", "smoke", parameters=job.parameters)
    record.record("accuracy", 95)
    job.folder.mkdir(parents=True)
    record.save().rename(job.folder / "record.json")
    metadata = {"papermill": {"parameters": job.parameters}}
    job.target.write_text(json.dumps({"metadata": metadata, "cells": []}))
    assert batch.execute_all([job], record=True, force=False) == [batch.Result(job, "before")]
    assert list(results.load()["value"]) == [95]
    assert batch._has_finished(job)
    metadata["papermill"]["parameters"] = job.parameters | {"lr": 0.5}  # of a changed preset
    job.target.write_text(json.dumps({"metadata": metadata, "cells": []}))
    assert not batch._has_finished(job)


def test_a_cell_over_its_limit_and_a_kernel_that_does_not_answer_are_told_apart(notebook):
    job = batch.plan(notebook, "smoke", {}, timeout_s=5)
    cells = json.loads(notebook.read_text())["cells"]
    for cell, start in zip(cells, ["a", "b", "c", None], strict=True):
        cell["metadata"] |= {"papermill": {"start_time": start}}
    cells.insert(2, {"metadata": {"tags": ["injected-parameters"]}})  # not the author's
    job.folder.mkdir(parents=True)
    job.partial.write_text(json.dumps({"cells": cells}))
    late = batch._result(job, batch.CellTimeoutError("..."))
    assert (late.state, late.cell) == ("failed", 3)
    assert late.error == "the cell ran longer than its limit of 5 s"
    assert "didn't respond" in batch._result(job, RuntimeError("Kernel didn't respond")).error


def test_the_bar_of_cells_says_what_the_newest_bar_inside_of_a_cell_says():
    bar = SimpleNamespace(set_postfix_str=lambda words, refresh: said.append(words))
    client = batch._Client(SimpleNamespace(nb=nbformat.v4.new_notebook(), pbar=bar))
    said = []
    client.reset_execution_trackers()

    def tell(kind, name, **state):
        data = {"state": state | ({"_model_name": name} if name else {})}
        content = {"comm_id": state.pop("id"), "data": data}
        client.handle_comm_msg([], {"msg_type": kind, "content": content}, 0)

    for letter, third in (("a", "HTMLModel"), ("b", "FloatSliderModel")):
        for at, name in enumerate(["HTMLModel", "FloatProgressModel", third]):
            tell("comm_open", name, id=f"{letter}{at}", value=0.5 if "Float" in name else "")
        tell(
            "comm_open",
            "HBoxModel",
            id=letter,
            children=[f"IPY_MODEL_{letter}{n}" for n in range(3)],
        )
        tell("comm_msg", None, id=f"{letter}0", value="trained:  43%")
        tell(
            "comm_msg", None, id=f"{letter}2", value=" 3/7 [00:03<00:04]" if letter == "a" else 1.0
        )
    assert said == ["trained 3/7"]


def test_nothing_survives_the_command_however_it_ends(tmp_path):
    """A violent end in the middle of a cell, then a polite one."""
    path = write_notebook(tmp_path / "notebooks")
    started = path.parent / "started"
    # an installed package keeps its runs below the working directory
    code = "import sys, alkit.data.paths; alkit.data.paths.root = alkit.data.paths.Path.cwd;"
    code += "from alkit.records.cli import main; sys.exit(main())"
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
    folder = tmp_path / "runs" / "10_x.smoke.mode=slow"
    assert [each.name for each in folder.iterdir()] == ["10_x.partial.ipynb"]


def wait_until(condition):
    deadline = time.monotonic() + LIVENESS_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
