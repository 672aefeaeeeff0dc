"""A notebook that ends as it is told, and what is left of its processes."""

import time
from pathlib import Path

import nbformat
import psutil

from alkit.records import results

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
# writes its records into the folder above the notebook's, and knows five ways to end
BODY = """\
import os, pathlib, subprocess, sys, time
if mode != "ok":
    words = [sys.executable, "-c", "import time; time.sleep(3600)"]
    subprocess.Popen(words, start_new_session=True)
if mode == "leave":
    sys.exit(0)
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


def wait_until(condition, what):
    deadline = time.monotonic() + LIVENESS_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def write_preset(notebook: Path, text: str | bytes, name: str = "cpu") -> Path:
    """Write a preset, or with "grid.sweep" a sweep, of the notebook."""
    file = notebook.parent / "params" / f"{notebook.stem}.{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def filled(notebook="02_al", preset="cpu", /, values=None, **parameters):
    """A run with four values, of these parameters."""
    run = results.Run(notebook, preset, parameters=parameters)
    for method, seed, value in values or ROWS:
        run.record("accuracy", value, method=method, data="digits", seed=seed, n=360, unit="%")
    return run


ROWS = [("bp", 0, 97.0), ("bp", 1, 97.8), ("al", 0, 96.5), ("al", 1, 96.1)]
