"""The batch runner: what it tells a run, and what becomes of runs that end badly."""

import json
import os
import signal
import subprocess
import sys

import nbformat
import pytest

from alkit.data import paths
from alkit.records import execution, results, runs, tables
from alkit.records.cli import main
from alkit.records.execution import RunFailed
from tests.unit.records.helpers import (
    BODY,
    LIVENESS_S,
    PARAMETERS,
    survivors,
    wait_until,
    write_notebook,
    write_preset,
)

ALL = {"preset": "smoke", "mode": "ok", "seed": 5, "lr": 1e-3, "seeds": [0, 1], "depth": 2}


@pytest.mark.parametrize(
    ("end", "said", "calls"),
    [
        ("sys.exit('Kernel didn\\'t respond in 120 seconds')", "Kernel didn't respond", 2),
        ("sys.exit('Kernel died before replying to kernel_info')", "Kernel died", 2),
        ("sys.exit('something else')", "something else", 1),
        ("os.kill(os.getpid(), 9)", r"its process ended unasked \(exit code -9\)", 1),
    ],
)
def test_only_a_kernel_that_does_not_start_is_tried_again(notebook, monkeypatch, end, said, calls):
    """In the place of papermill's command stands one that says why it ends, or nothing."""
    code = f"import os, sys; open('calls', 'a').write('x'); {end}"
    monkeypatch.setattr(execution, "PAPERMILL", [sys.executable, "-c", code])
    monkeypatch.chdir(notebook.parent)
    with pytest.raises(RunFailed, match=said) as failed:
        runs.run(notebook, progress=False)
    assert (notebook.parent / "calls").read_text() == calls * "x"
    assert (failed.value.cell, failed.value.partial) == (None, None)


def test_a_peak_is_that_of_the_run_whatever_starts_it(notebook, monkeypatch):
    monkeypatch.setattr(execution, "PAPERMILL", [sys.executable, "-c", ""])
    ballast = bytearray(b"x") * 2**29  # 512 MiB of this process's own
    job = runs.plan(notebook)
    job.folder.mkdir(parents=True)
    peak_mib = execution._papermill(job, None)[2]
    assert 1 < peak_mib < 256 < len(ballast) / 2**20


def test_the_kernel_gets_absolute_paths_all_parameters_and_no_thread_setting(notebook, monkeypatch):
    monkeypatch.setenv("ALKIT_DATA", "somewhere")
    monkeypatch.setenv("MPLBACKEND", "Agg")  # in which a notebook shows no figure
    job = runs.plan(notebook, overrides={"seed": 5, "depth": 2})
    given = execution.environment(job, "id")
    assert given["ALKIT_DATA"] == os.path.abspath("somewhere")
    assert given["ALKIT_RUN_FOLDER"] == str(paths.runs_dir() / "10_x.smoke.depth=2_seed=5")
    assert json.loads(given["ALKIT_RUN_PARAMETERS"]) == ALL
    assert "OMP_NUM_THREADS" not in given
    assert given["MPLBACKEND"].endswith("inline")
    assert os.path.isabs(given["PYTHONPATH"].split(os.pathsep)[0])


SHOWN = """\
from IPython.display import Image, display
display(Image(data=b"\\x89PNG\\r\\n\\x1a\\n" + bytes(20), format="png"))
(pathlib.Path(os.environ["ALKIT_RUN_FOLDER"]) / "10_x.png").touch()
run.record("report", "line one\\nline two")
run.save()
"""


def test_a_run_leaves_its_notebook_and_its_record_and_the_command_says_where(
    notebook, checkout, caplog, capfd, mark, monkeypatch
):
    write_notebook(notebook.parent, body=BODY + SHOWN)
    (checkout / "figures").mkdir()
    monkeypatch.chdir(checkout)
    caplog.set_level("INFO", "alkit")
    assert main("run 10_x --record -p seed=5 depth=2".split()) == 0
    out, err = capfd.readouterr()
    name = "10_x.smoke.depth=2_seed=5"
    assert out.startswith("line one\nline two\n\n")
    assert "95" not in out  # the report stands for the rows
    assert f"notebook  runs/{name}/10_x.ipynb (figures inside: 1)\n" in out
    assert f"record    runs/{name}/record.json\n" in out
    assert out.endswith("figures   figures/10_x.png\n")
    assert "10_x:" in err  # the progress bar
    assert "encryption" not in err
    assert "parse" not in err  # papermill's opinion of values that go over several lines
    folder = checkout / "runs" / name
    assert {path.name for path in folder.iterdir()} == {"10_x.ipynb", "10_x.png", "record.json"}
    assert [path.name for path in (checkout / "figures").iterdir()] == ["10_x.png"]
    kept = results.load("10_x", "smoke")
    for rows in (kept, results.read(folder / "10_x.ipynb")):
        assert list(rows["value"]) == [95, "2", "free", "line one\nline two"]
    assert json.loads(kept["parameters"][0]) == ALL  # also those that nobody gave
    assert not survivors(mark)
    # the same again is known, recorded or not, whatever has changed in the notebook
    write_notebook(notebook.parent, body=BODY + "\npass")
    asked = {"overrides": {"seed": 5, "depth": 2}}
    for record in (True, False):
        found = execution.done_before(runs.plan(notebook, record=record, **asked))
        assert 20 < found["peak_mib"] < 2000
        assert f"10_x smoke.depth=2_seed=5: {found['seconds']:.1f} s, peak" in caplog.text
    assert execution.done_before(runs.plan(notebook, overrides={"seed": 5})) is None
    # one that was not to be recorded does not stand for one that is
    book = nbformat.read(folder / "10_x.ipynb", as_version=4)
    book.metadata["alkit"]["record"] = False
    nbformat.write(book, folder / "10_x.ipynb")
    free, recorded = (runs.plan(notebook, record=each, **asked) for each in (False, True))
    assert execution.done_before(free)
    assert execution.done_before(recorded) is None
    # one that failed in between leaves nothing that could stand for it
    monkeypatch.setattr(execution, "PAPERMILL", [sys.executable, "-c", "raise SystemExit(1)"])
    with pytest.raises(RunFailed):
        runs.run(notebook, progress=False, **asked)
    assert list(folder.iterdir()) == []


def test_a_sweep_goes_on_after_a_failure(notebook, mark):
    file = write_preset(notebook, "notebook: 10_x.ipynb\ngrid:\n  mode: [raise, die, leave, ok]\n")
    points = runs.sweep(file, progress=False)
    assert list(points["state"]) == ["failed", "failed", "failed", "done"]
    assert list(points["cell"][:3]) == [4, 4, 4]
    errors = points["error"]
    assert errors[0].endswith("RuntimeError: the reason")
    assert "\x1b" not in errors[0]
    assert errors[1] == "the kernel died; mostly because memory ran out"
    assert "SystemExit: 0" in errors[2]  # a notebook that stops in the middle is not finished
    names = [f"10_x.smoke.mode={word}" for word in ("raise", "die", "leave")]
    assert [path.parent.name for path in points["path"][:3]] == names
    assert {path.name for path in points["path"][:3]} == {"10_x.partial.ipynb"}
    assert all(path.is_file() for path in points["path"])
    assert list(results.read(points["path"][3])["value"]) == [90, "None", "1"]
    assert not survivors(mark)
    again = runs.sweep(file, progress=False, part=(4, 4))
    assert list(again["state"]) == ["before"]
    assert again["seconds"][0] == points["seconds"][3]


def test_a_cell_over_its_time_limit_ends_the_run(notebook, mark, capfd):
    with pytest.raises(RunFailed) as failed:
        runs.run(notebook, overrides={"mode": "slow"}, timeout_s=5, progress=False)
    assert (failed.value.notebook, failed.value.cell) == ("10_x.ipynb", 4)
    assert failed.value.error == "the cell ran longer than its limit of 5 s"
    assert failed.value.partial == paths.runs_dir() / "10_x.smoke.mode=slow" / "10_x.partial.ipynb"
    text = str(failed.value)
    assert text.startswith("10_x.ipynb failed in cell 4:\nthe cell ran longer")
    assert os.path.relpath(failed.value.partial) in text
    assert not survivors(mark)
    assert capfd.readouterr().err == ""  # neither papermill nor the kernel says it once more


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grid: {seed: [1]}", "needs a notebook and either a grid or points"),
        ("notebook: 10_x.ipynb", "needs a notebook and either"),
        ("notebook: 10_x\ngrid: {seed: [1]}\npoints: [{}]", "needs a notebook and either"),
        ("notebook: 10_x\ngrid: {seed: 1}", "grid must be lines of"),
        ("notebook: 10_x\ngrid: {seed: []}", "grid must be lines of"),
        ("notebook: 10_x\npoints: {seed: 1}", "points must be a list"),
        ("notebook: 10_x\npoints: []", "points must be a list"),
        ("notebook: 10_x\npoints: [{seed: 1}, {seed: a}]", "seed must be int, not 'a'"),
        ("notebook: 10_x\npoints: [{lr: 1}, {lr: 1.0}]", "a point twice: smoke.lr=1.0"),
        ("notebook: 10_x\npoints: [{seed: 0}, {}]", "a point twice: smoke"),
        ("notebook: 10_x\ngrid: {seed: [1], seed: [2]}", "'seed' is there twice"),
        ("notebook: 10_x\npreset: cpu\ngrid: {seed: [1]}", "no preset 'cpu'"),
        ("notebook: 10_x\ngrids: {seed: [1]}", "grids is not known"),
        ("notebook: 11_y\ngrid: {seed: [1]}", "no notebook 11_y"),
    ],
)
def test_a_bad_sweep_is_refused_before_its_first_run(notebook, tmp_path, text, message):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        runs.sweep(tmp_path / "s.yaml", progress=False)
    assert not paths.runs_dir().exists()


def test_points_of_a_grid_are_all_combinations(notebook, tmp_path):
    text = "notebook: 10_x\npreset: smoke\ngrid: {seed: [0, 1], mode: [ok, die]}"
    (tmp_path / "s.yaml").write_text(text)
    planned = runs.plan_sweep(tmp_path / "s.yaml", threads=1)
    values = [(job.values["seed"], job.values["mode"]) for job in planned]
    assert values == [(0, "ok"), (0, "die"), (1, "ok"), (1, "die")]
    assert execution.environment(planned[0], "id")["OMP_NUM_THREADS"] == "1"


def command(folder, *words):
    """Start alkit's command in a checkout of its own, as a user does."""
    # an installed package keeps its runs below the working directory
    code = "import sys, alkit.data.paths; alkit.data.paths.root = alkit.data.paths.Path.cwd;"
    code += "from alkit.records.cli import main; sys.exit(main())"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", code, *words]
    return subprocess.Popen(words, cwd=folder, env=env, stderr=subprocess.PIPE, text=True)


def test_no_process_survives_an_interrupt(tmp_path, mark):
    """Ctrl-C, a polite end and a violent end of the command, all in the middle of a cell."""
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
    started, commands = [], []
    for number in signals:
        path = write_notebook(tmp_path / number.name / "notebooks")
        started.append(path.parent / "started")
        commands.append(command(path.parent.parent, "run", str(path), "-p", "mode=slow"))
    wait_until(lambda: all(file.exists() for file in started), "the cells have not begun")
    assert len(survivors(mark)) >= 3 * 5  # command, reaper, papermill, kernel, the cell's own
    for each, number in zip(commands, signals, strict=True):
        each.send_signal(number)
    errors = [each.communicate(timeout=LIVENESS_S)[1] for each in commands]
    assert [each.returncode for each in commands] == [130, 130, -signal.SIGKILL]
    said = "\n".join(errors)
    assert "Traceback" not in said, said
    assert errors[0].endswith("alkit: interrupted; no process of it is left\n")
    wait_until(lambda: not survivors(mark), "processes have survived")
    folder = tmp_path / "SIGINT" / "runs" / "10_x.smoke.mode=slow"
    assert json.loads((folder / "10_x.partial.ipynb").read_text())["cells"]
    assert not (folder / "10_x.ipynb").exists()


COUNTS = """\
import os, pathlib, time
with open(f"begun-{seed}", "a") as begun:
    print(os.getpid(), file=begun)
while seed > 1 and not pathlib.Path("go").exists():
    time.sleep(0.05)
import alkit.data.paths
alkit.data.paths.root = lambda: pathlib.Path.cwd().parent
import alkit.records.results
run = alkit.records.results.Run("10_x", preset)
for epoch in range(3):
    run.record("loss", seed + epoch / 8, method="al", seed=seed, extra={"epoch": epoch})
run.save()
"""


def test_a_sweep_interrupted_resumed_and_run_twice_at_once_is_one_table(checkout, mark):
    """Six points; the two that had finished are kept, and no other is executed twice."""
    notebook = write_notebook(checkout / "notebooks", PARAMETERS, COUNTS)
    file = write_preset(notebook, "notebook: 10_x\ngrid: {seed: [0, 1, 2, 3, 4, 5]}", "sweep")
    words = ["sweep", str(file), "--record", "--jobs", "2"]
    folder = notebook.parent

    def begun():
        return [len(path.read_text().split()) for path in sorted(folder.glob("begun-*"))]

    first = command(checkout, *words)
    wait_until(lambda: first.poll() is not None or len(begun()) == 4, "no four points have begun")
    first.send_signal(signal.SIGINT)
    assert "interrupted" in first.communicate(timeout=LIVENESS_S)[1]
    wait_until(lambda: not survivors(mark), "processes have survived")
    assert set(results.load()["seed"]) == {0, 1}  # what had finished is in the tables
    before = (paths.records_dir() / "10_x.csv").read_text().splitlines()

    both = [command(checkout, *words) for _ in range(2)]
    wait_until(lambda: sum(begun()) >= 4 + 4, "no two points of both have begun")
    (folder / "go").touch()
    said = [each.communicate(timeout=LIVENESS_S)[1] for each in both]
    assert [each.returncode for each in both] == [0, 0], said
    assert begun() == [1, 1, 2, 2, 1, 1], said  # 2 and 3 were interrupted
    rows = [(row["seed"], row["epoch"], row["value"]) for row in tables.values("10_x")]
    assert rows == [(seed, epoch, seed + epoch / 8) for seed in range(6) for epoch in range(3)]
    assert [run["parameters"]["seed"] for run in tables.runs()] == list(range(6))
    after = (paths.records_dir() / "10_x.csv").read_text().splitlines()
    assert [line for line in after if line in before] == before

    known = runs.sweep(file, record=True, progress=False)
    assert set(known["state"]) == {"before"}
    assert list(known["run"]) == [run["run"] for run in tables.runs()]


def test_the_point_of_a_killed_sweep_runs_again_in_the_other(checkout, mark):
    """As on two machines of which one is lost: nothing else runs twice."""
    notebook = write_notebook(checkout / "notebooks", PARAMETERS, COUNTS)
    file = write_preset(notebook, "notebook: 10_x\ngrid: {seed: [2, 3, 4]}", "sweep")
    words = ["sweep", str(file), "--record", "--jobs", "1"]

    def begun():
        found = {path.name: path.read_text().split() for path in notebook.parent.glob("begun-*")}
        return {name: len(kernels) for name, kernels in found.items() if kernels}

    lost = command(checkout, *words)
    wait_until(lambda: lost.poll() is not None or begun(), "the first point has not begun")
    other = command(checkout, *words)
    wait_until(lambda: other.poll() is not None or len(begun()) == 2, "the other takes no point")
    assert set(begun()) == {"begun-2", "begun-3"}
    lost.send_signal(signal.SIGKILL)
    lost.communicate(timeout=LIVENESS_S)
    (notebook.parent / "go").touch()
    said = other.communicate(timeout=LIVENESS_S)[1]
    assert other.returncode == 0, said
    assert begun() == {"begun-2": 2, "begun-3": 1, "begun-4": 1}
    assert [run["parameters"]["seed"] for run in tables.runs()] == [2, 3, 4]
    wait_until(lambda: not survivors(mark), "processes have survived")
