"""A notebook that ends as it is told."""

from pathlib import Path

import nbformat

from alkit.lab import results

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
# writes its record into the folder that it is told, and knows five ways to end
BODY = """\
import os, pathlib, sys, time
from alkit.lab.results import Run
if mode == "leave":
    sys.exit(0)
if mode == "raise":
    raise RuntimeError(20_000 * "the reason ")  # more than a pipe holds
if mode == "die":
    os._exit(1)
if mode == "slow":
    pathlib.Path("started").write_text(str(os.getpid()))
    time.sleep(3600)
run = Run("10_x", preset)
run.record("accuracy", 90 + seed, method="al", seed=seed)
run.record("threads", os.environ["OMP_NUM_THREADS"], method="al")
run.save()
"""


def write_notebook(folder, source=PARAMETERS, body=BODY, name="10_x", tags=("parameters",)):
    cells = [nbformat.v4.new_markdown_cell("# words"), nbformat.v4.new_code_cell(source)]
    cells += [nbformat.v4.new_markdown_cell("more"), nbformat.v4.new_code_cell(body)]
    cells[1].metadata["tags"] = list(tags)
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / f"{name}.ipynb")
    return folder / f"{name}.ipynb"


def write_preset(notebook: Path, text: str | bytes, name: str = "cpu") -> Path:
    """Write a preset, or with "grid.sweep" a sweep, of the notebook."""
    file = notebook.parent / "params" / f"{notebook.stem}.{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def filled(notebook="02_al", preset="cpu", /, values=None, **parameters):
    """A run with four values, of these parameters."""
    run = results.Run(notebook, preset)
    run.parameters = parameters
    for method, seed, value in values or ROWS:
        run.record("accuracy", value, method=method, data="digits", seed=seed, n=360, unit="%")
    return run


ROWS = [("bp", 0, 97.0), ("bp", 1, 97.8), ("al", 0, 96.5), ("al", 1, 96.1)]
