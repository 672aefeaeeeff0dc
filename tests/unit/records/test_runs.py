"""The batch runner: what is refused before a run, and what becomes of runs that end badly."""

import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid

import nbformat
import papermill
import psutil
import pytest

from alkit.data import paths
from alkit.records import execution, results, runs

PARAMETERS = """\
preset: str = "smoke"  # which set of values
mode: str = "ok"  # how it ends
seed: int = 0
lr: float = 1e-3  # of Adam
seeds: list[int] = [
    0,
    1,
]  # runs
depth: int | None = None
"""
# writes its records into the folder above the notebook's, and knows four ways to end
BODY = """\
import os, pathlib, subprocess, sys, time
if mode != "ok":
    words = [sys.executable, "-c", "import time; time.sleep(3600)"]
    subprocess.Popen(words, start_new_session=True)
if mode == "raise":
    raise RuntimeError("the reason")
if mode == "die":
    os.kill(os.getpid(), 9)
if mode == "slow":
    pathlib.Path("started").touch()
    time.sleep(3600)
import alkit.data.paths
alkit.data.paths.root = lambda: pathlib.Path.cwd().parent
import alkit.records.results
run = alkit.records.results.Run("10_x", preset)
run.record("accuracy", 90 + seed, method="al", seed=seed)
run.record("depth", str(depth), method="al")
run.record("threads", os.environ.get("OMP_NUM_THREADS", "free"), method="al")
run.save()
"""
MARK = "ALKIT_TEST_MARK"
LIVENESS_S = 900  # only a hang takes so long


def write_notebook(folder, source=PARAMETERS, body=BODY, name="10_x", tags=("parameters",)):
    cells = [nbformat.v4.new_markdown_cell("# words"), nbformat.v4.new_code_cell(source)]
    cells += [nbformat.v4.new_markdown_cell("more"), nbformat.v4.new_code_cell(body)]
    cells[1].metadata["tags"] = list(tags)
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / f"{name}.ipynb")
    return folder / f"{name}.ipynb"


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """A notebook in a checkout of its own, and no setting of the caller's."""
    monkeypatch.setattr(paths, "root", lambda: tmp_path)
    for name in ("ALKIT_RECORD", "ALKIT_RUN_SLUG", "ALKIT_RUN_ID", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return write_notebook(tmp_path / "notebooks")


@pytest.fixture
def mark(monkeypatch):
    """A word in the environment of every process that a test starts."""
    word = uuid.uuid4().hex
    monkeypatch.setenv(MARK, word)
    return word


def survivors(word):
    """Return the command lines of living processes that carry the word."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK) == word and process.status() != "zombie"
            command = " ".join(process.cmdline())
        except psutil.Error:
            continue
        # the standard library's tracker lives as long as the process that runs the tests
        if ours and "resource_tracker" not in command:
            found.append(command)
    return found


def test_parameters_are_read_with_types_and_comments(notebook):
    known = runs.parameters(notebook)
    assert list(known) == ["preset", "mode", "seed", "lr", "seeds", "depth"]
    assert known["lr"] == runs.Parameter("lr", "float", 1e-3, "of Adam")
    assert known["seeds"] == runs.Parameter("seeds", "list[int]", [0, 1], "runs")
    assert known["depth"] == runs.Parameter("depth", "int | None", None, "")
    assert runs.parameters("10_x") == known


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a: int = 1\nb = 2", "line 2 .* must read `name: type = literal`"),
        ("a: int", "line 1 .* must read"),
        ("a: int = 1\nprint(a)", "line 2 .* must read"),
        ("a: int = 1\nb: int = a + 1", "line 2 .* is no literal"),
        ("a: int = min(1, 2)", "line 1 .* is no literal"),
        ("a: dict = {}", "line 1 .* has the type dict"),
        ("a: None = None", "line 1 .* has the type None"),
        ("a: int = 1.5", "line 1 .* a must be int, not 1.5"),
        ("a: int = 1\na: int = 2", "line 2 .* a second time"),
        ("a: int = 1\nb: int = ", "line 2 .* no Python"),
    ],
)
def test_a_bad_parameters_cell_is_named_with_its_line(tmp_path, source, message):
    path = write_notebook(tmp_path, source)
    with pytest.raises(runs.ParameterError, match="10_x.ipynb: " + message):
        runs.parameters(path)


def test_a_notebook_that_is_not_there_or_has_not_one_parameters_cell(notebook):
    with pytest.raises(runs.ParameterError, match="no notebook 10_y, did you mean '10_x'"):
        runs.parameters("10_y")
    content = nbformat.read(notebook, as_version=4)
    for tagged, count in (((1, 3), 2), ((), 0)):
        for at, cell in enumerate(content.cells):
            cell.metadata["tags"] = ["parameters"] * (at in tagged)
        nbformat.write(content, notebook)
        said = f"10_x.ipynb has {count} cells tagged 'parameters'"
        with pytest.raises(ValueError, match=said):
            runs.parameters(notebook)
    notebook.write_text("[]")
    with pytest.raises(runs.ParameterError, match="10_x.ipynb is no notebook"):
        runs.parameters(notebook)


def known(kind, default=None):
    return {"v": runs.Parameter("v", kind, default, "")}


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        ("int", 3, 3),
        ("float", 3, 3.0),
        ("float", 0.5, 0.5),
        ("bool", True, True),
        ("str", "a", "a"),
        ("list[int]", (1, 2), [1, 2]),
        ("list[float]", [1, 0.5], [1.0, 0.5]),
        ("list[str]", [], []),
        ("int | None", None, None),
        ("None | list[str]", ["a"], ["a"]),
        ("int | str", "a", "a"),
    ],
)
def test_a_fitting_value_is_taken_in_its_type(kind, value, result):
    checked = runs.check(known(kind), {"v": value})["v"]
    assert checked == result
    assert type(checked) is type(result)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("float", "1e-3", r"float, not '1e-3' \(str\): YAML .* write 1.0e-3"),
        ("float", "5E4", r"write 5.0e\+4"),
        ("list[float]", [0.1, "2e-5"], "write 2.0e-5"),
        ("float | None", "1.5e3", r"write 1.5e\+3"),
        ("float", "fast", "a value of the type float"),
        ("float", True, r"float, not True \(bool\)"),
        ("int", True, r"int, not True \(bool\)"),
        ("int", 1.0, r"int, not 1.0 \(float\)"),
        ("int", None, "int, not None"),
        ("bool", 1, "write True or False"),
        ("bool", "true", "write True or False"),
        ("str", 10, 'write "10", with the quotes'),
        ("list[int]", 1, r"write a list, as in \[0, 1\]"),
        ("list[str]", "a", r"write a list, as in \['a', 'b'\]"),
        ("list[int]", [1, True], r"list\[int\], not \[1, True\]"),
        ("list[int]", [[1]], r"list\[int\]"),
    ],
)
def test_another_type_is_refused_with_what_to_do(kind, value, message):
    with pytest.raises(runs.ParameterError, match="file.yaml: v must be .*" + message):
        runs.check(known(kind), {"v": value}, "file.yaml")
    both = known("int") | {"epochs": runs.Parameter("epochs", "int", 1, "")}
    nearest = r"no parameter 'epoch', did you mean 'epochs'\? \(allowed: v, epochs\)"
    with pytest.raises(runs.ParameterError, match=nearest):
        runs.check(both, {"epoch": 3})


def write_preset(notebook, text, name="cpu"):
    folder = notebook.parent / "params"
    folder.mkdir(exist_ok=True)
    (folder / f"10_x.{name}.yaml").write_text(text)


def test_presets_are_read_from_beside_the_notebook_and_a_missing_one_names_those(notebook):
    write_preset(notebook, "lr: 2\nseeds: [5]\n")
    write_preset(notebook, "", "empty")
    assert runs.preset_values(notebook, "smoke") == {}
    assert runs.preset_values(notebook, "cpu") == {"lr": 2.0, "seeds": [5]}
    assert runs.preset_values(notebook, "empty") == {}
    message = r"no preset 'cpus', did you mean 'cpu'\? \(there is: smoke, cpu, empty\)"
    with pytest.raises(runs.ParameterError, match=message):
        runs.preset_values(notebook, "cpus")
    (notebook.parent / "params" / "10_x.sub").mkdir()
    write_preset(notebook, "lr: 2\n", "sub/cpu")
    with pytest.raises(runs.ParameterError, match="no preset 'sub/cpu'"):
        runs.preset_values(notebook, "sub/cpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lrr: 1.0", "10_x.cpu.yaml: no parameter 'lrr', did you mean 'lr'"),
        ("lr: 1e-3", "10_x.cpu.yaml: lr must be float, not '1e-3' .* write 1.0e-3"),
        ("- lr", "10_x.cpu.yaml must hold lines"),
        ("lr: [", "10_x.cpu.yaml cannot be read as YAML"),
    ],
)
def test_a_bad_preset_is_refused(notebook, text, message):
    write_preset(notebook, text)
    with pytest.raises(runs.ParameterError, match=message):
        runs.plan(notebook, "cpu")


def test_a_plan_layers_defaults_preset_and_overrides(notebook):
    write_preset(notebook, "lr: 2\nseed: 4\n")
    job = runs.plan(notebook, "cpu", {"seed": 7, "mode": "raise"})
    assert job.values == {"preset": "cpu", "lr": 2.0, "seed": 7, "mode": "raise"}
    assert job.target == paths.runs_dir() / "10_x" / "cpu.mode=raise_seed=7.ipynb"
    assert job.partial.name == "cpu.mode=raise_seed=7.partial.ipynb"
    assert runs.plan(notebook, out_dir=notebook.parent).target == notebook.parent / "smoke.ipynb"
    with pytest.raises(runs.ParameterError, match="10_x.ipynb: no parameter 'sed'"):
        runs.plan(notebook, "cpu", {"sed": 7})
    with pytest.raises(runs.ParameterError, match="time limit is 0 s"):
        runs.plan(notebook, timeout_s=0)


def test_slugs_are_safe_and_tell_values_apart(notebook):
    words = ["a", "b", "a b", "a/b", "../b", "1", "None", "a=b", "x" * 300, "x" * 301, "ä"]
    points = [{}, {"mode": "a", "seed": 1}, {"lr": 0.1}, {"lr": 1e-05}, {"lr": -1.0}]
    points += [{"seeds": [0, 1]}, {"seeds": [0, -1]}, {"seeds": []}, {"depth": 1}, {"depth": None}]
    points += [{"mode": word} for word in [*words, "a_seed=1"]]
    jobs = [runs.plan(notebook, overrides=point) for point in points]
    names = [job.name for job in jobs]
    assert len(set(names)) == len(points)
    assert all("/" not in name and " " not in name and len(name) < 110 for name in names)
    assert names[1] == "smoke.mode=a_seed=1"
    assert runs.plan(notebook, overrides={"seed": 1, "mode": "a"}).name == names[1]
    assert all(results.record_path("10_x", "smoke", job.slug) for job in jobs)


def test_the_key_follows_code_and_parameters_and_neither_prose_nor_reading(notebook):
    def key(**overrides):
        nbformat.write(content, notebook)
        return runs.plan(notebook, overrides=overrides).key

    content = nbformat.read(notebook, as_version=4)
    before = key()
    content.cells[0].source = "# other words"
    assert key() == key(seed=0) == before
    assert key(seed=1) != before
    content.cells.append(nbformat.v4.new_code_cell("table"))
    assert key() != before
    content.cells[-1].metadata["tags"] = ["results", "reading"]  # it only reads records
    assert key() == before
    content.cells[3].source += "\npass"
    assert key() != before


@pytest.mark.parametrize(
    ("text", "calls"),
    [("Kernel didn't respond in 120 seconds", 2), ("Kernel died before replying to kernel_info", 2),
     ("something else", 1)],
)  # fmt: skip
def test_only_a_kernel_that_does_not_start_is_tried_again(notebook, monkeypatch, text, calls):
    seen = []

    def fail(*arguments, **options):
        seen.append(options)
        raise RuntimeError(text)

    monkeypatch.setattr(papermill, "execute_notebook", fail)
    with pytest.raises(RuntimeError, match=text):
        execution._papermill(runs.plan(notebook))
    assert len(seen) == calls
    assert seen[0]["start_timeout"] == 120
    assert seen[0]["iopub_timeout"] == 60

    def recover(*arguments, **options):
        monkeypatch.setattr(papermill, "execute_notebook", lambda *a, **o: "notebook")
        raise RuntimeError(text)

    if calls == 2:
        monkeypatch.setattr(papermill, "execute_notebook", recover)
        assert execution._papermill(runs.plan(notebook)) == "notebook"


def test_the_kernel_gets_absolute_paths_and_no_thread_setting(notebook, monkeypatch):
    monkeypatch.setenv("ALKIT_DATA", "somewhere")
    given = execution._environment(runs.plan(notebook, overrides={"seed": 1}), "id")
    assert given["ALKIT_DATA"] == os.path.abspath("somewhere")
    assert given["ALKIT_RUN_SLUG"] == "seed=1"
    assert "OMP_NUM_THREADS" not in given
    assert given["ALKIT_RECORD"] == ""
    assert os.path.isabs(given["PYTHONPATH"].split(os.pathsep)[0])
    monkeypatch.setenv("ALKIT_RECORD", "1")
    assert execution._environment(runs.plan(notebook), "id")["ALKIT_RECORD"] == "1"


def test_a_run_leaves_its_notebook_and_its_record(notebook, tmp_path, caplog, mark):
    caplog.set_level("INFO", "alkit")
    asked = {"overrides": {"seed": 5, "depth": 2}}
    done = runs.run(notebook, record=True, progress=False, **asked)
    assert done.path == tmp_path / "runs" / "10_x" / "smoke.depth=2_seed=5.ipynb"
    assert list(done.rows["value"]) == [95, "2", "free"]
    assert done.record == tmp_path / "notebooks" / "results" / "10_x.smoke.depth=2_seed=5.json"
    assert list(results.load("10_x", "smoke")["value"]) == [95, "2", "free"]
    assert done.seconds > 0
    assert 20 < done.peak_mib < 2000
    assert not list(done.path.parent.glob("*partial*"))
    assert f"10_x smoke.depth=2_seed=5: {done.seconds:.1f} s, peak" in caplog.text
    assert not survivors(mark)
    # the same again is known, also without a record
    job, recorded = (runs.plan(notebook, record=each, **asked) for each in (False, True))
    assert execution.previous(job).seconds == done.seconds
    assert execution.previous(recorded) is not None
    # a committed record stands for its run
    shutil.rmtree(paths.runs_dir())
    known = execution.previous(recorded)
    assert known.path == known.record == done.record
    assert list(known.rows["value"]) == list(done.rows["value"])
    assert math.isnan(known.seconds)
    assert execution.previous(job) is None
    # and a changed notebook is not known
    write_notebook(notebook.parent, body=BODY + "\npass")
    assert execution.previous(runs.plan(notebook, record=True, **asked)) is None


def test_an_unrecorded_run_does_not_stand_for_a_recorded_one(notebook):
    job = runs.plan(notebook)
    content = nbformat.read(notebook, as_version=4)
    stored = {"key": job.key, "record": False, "seconds": 1.0, "peak_mib": 2.0}
    content.metadata["alkit"] = stored
    job.out_dir.mkdir(parents=True)
    nbformat.write(content, job.target)
    assert execution.previous(job).peak_mib == 2.0
    assert execution.previous(job).record is None
    assert execution.previous(dataclasses.replace(job, record=True)) is None


def test_a_sweep_goes_on_after_a_failure(notebook, mark):
    file = notebook.parent / "params" / "grid.yaml"
    file.parent.mkdir()
    file.write_text("notebook: 10_x.ipynb\ngrid:\n  mode: [raise, die, ok]\n")
    points = runs.sweep(file, progress=False)
    assert list(points["state"]) == ["failed", "failed", "done"]
    assert list(points["cell"][:2]) == [4, 4]
    errors = points["error"]
    assert errors[0].endswith("RuntimeError: the reason")
    assert "\x1b" not in errors[0]
    assert "kernel died (exit code -9" in errors[1]
    names = ["raise.partial", "die.partial", "ok"]
    assert [path.name for path in points["path"]] == [f"smoke.mode={n}.ipynb" for n in names]
    assert all(path.is_file() for path in points["path"])
    assert list(results.read(points["path"][2])["value"]) == [90, "None", "1"]
    assert not survivors(mark)
    file.write_text("notebook: 10_x.ipynb\npoints: [{mode: ok}]\n")
    again = runs.sweep(file, progress=False)
    assert list(again["state"]) == ["before"]
    assert again["seconds"][0] == points["seconds"][2]


def test_a_cell_over_its_time_limit_ends_the_run(notebook, mark, capfd):
    with pytest.raises(runs.RunFailed) as failed:
        runs.run(notebook, overrides={"mode": "slow"}, timeout_s=10, progress=False)
    assert (failed.value.notebook, failed.value.cell) == ("10_x.ipynb", 4)
    assert failed.value.error == "the cell ran longer than its limit of 10 s"
    assert failed.value.partial == paths.runs_dir() / "10_x" / "smoke.mode=slow.partial.ipynb"
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
        ("notebook: 10_x\npreset: cpu\ngrid: {seed: [1]}", "no preset 'cpu'"),
        ("notebook: 10_x\ngrids: {seed: [1]}", "grids is not known"),
        ("notebook: 11_y\ngrid: {seed: [1]}", "no notebook 11_y"),
    ],
)
def test_a_bad_sweep_is_refused_before_its_first_run(notebook, tmp_path, text, message):
    with pytest.raises(runs.ParameterError, match="s.yaml cannot be read"):
        runs.sweep(tmp_path / "s.yaml")
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(runs.ParameterError, match=message):
        runs.sweep(tmp_path / "s.yaml", progress=False)
    with pytest.raises(runs.ParameterError, match="jobs is 0"):
        runs.sweep(tmp_path / "s.yaml", jobs=0)
    assert not paths.runs_dir().exists()


def test_points_of_a_grid_are_all_combinations(notebook, tmp_path):
    text = "notebook: 10_x\npreset: smoke\ngrid: {seed: [0, 1], mode: [ok, die]}"
    (tmp_path / "s.yaml").write_text(text)
    planned = runs.plan_sweep(tmp_path / "s.yaml", threads=1)
    values = [(job.values["seed"], job.values["mode"]) for job in planned]
    assert values == [(0, "ok"), (0, "die"), (1, "ok"), (1, "die")]
    assert execution._environment(planned[0], "id")["OMP_NUM_THREADS"] == "1"


def wait_until(condition, what):
    deadline = time.monotonic() + LIVENESS_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_a_run_that_is_ended_says_nothing_of_its_cells_task():
    """On a busy machine the task may find the kernel dead before the process is gone."""
    code = """if True:
        import asyncio
        from alkit.records.execution import _leave

        async def cell():
            raise RuntimeError("Kernel died")

        async def run():
            task = asyncio.ensure_future(cell())
            await asyncio.sleep(0)
            _leave()

        asyncio.run(run())
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGTERM
    assert "never retrieved" not in done.stderr


def test_no_process_survives_an_interrupt(tmp_path, mark):
    """Ctrl-C, a polite end and a violent end of the command, all in the middle of a cell."""
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
    started, commands = [], []
    for number in signals:
        path = write_notebook(tmp_path / number.name / "notebooks")
        started.append(path.parent / "started")
        # an installed package keeps its runs below the working directory
        code = "import sys, alkit.data.paths; alkit.data.paths.root = alkit.data.paths.Path.cwd;"
        code += "from alkit.records.cli import main; sys.exit(main())"
        words = [sys.executable, "-c", code, "run", str(path), "-p", "mode=slow"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        commands.append(
            subprocess.Popen(
                words, cwd=path.parent.parent, env=environment, stderr=subprocess.PIPE, text=True
            )
        )
    wait_until(lambda: all(file.exists() for file in started), "the cells have not begun")
    assert len(survivors(mark)) >= 3 * 4  # the command, its process, the kernel, the cell's own
    for command, number in zip(commands, signals, strict=True):
        command.send_signal(number)
    errors = [command.communicate(timeout=LIVENESS_S)[1] for command in commands]
    assert [command.returncode for command in commands] == [130, 130, -signal.SIGKILL]
    said = "\n".join(errors)
    assert "Traceback" not in said, said
    assert errors[0].endswith("alkit: interrupted; no process of it is left\n")
    wait_until(lambda: not survivors(mark), "processes have survived")
    partial = tmp_path / "SIGINT" / "runs" / "10_x" / "smoke.mode=slow.partial.ipynb"
    assert json.loads(partial.read_text())["cells"]
    assert not list(partial.parent.glob("smoke.mode=slow.ipynb"))
