"""A notebook that papermill runs by hand, from another folder, on a machine without a screen."""

import json
import os
import subprocess
import sys

import nbformat

from alkit.data.paths import root

SOURCES = (
    'preset: str = "smoke"\nseed: int = 0\nepochs: int = 1\n',
    "import matplotlib.pyplot as plt\nfrom alkit.figures.notebook import setup\n"
    "from alkit.records.results import Run\nfrom studies.common import drawings\nsetup(seed)",
    "_ = plt.plot([1, 2])\nplt.show()",
    'run = Run("99_template", preset=preset)\nrun.record("m", 1, method="al")\n_ = run.save()',
)


def test_papermill_from_another_folder_finds_studies_draws_and_knows_its_parameters(tmp_path):
    cells = [nbformat.v4.new_code_cell(source) for source in SOURCES]
    cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "a.ipynb")
    own = {"MPLBACKEND": "Agg", "ALKIT_RUN_FOLDER": str(tmp_path), "PYTHONPATH": str(root())}
    words = [sys.executable, "-m", "papermill", "a.ipynb", "b.ipynb", "-p", "seed", "7"]
    words += ["-k", "python3", "--language", "python"]
    done = subprocess.run(
        words, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    made = nbformat.read(tmp_path / "b.ipynb", 4).cells
    kinds = [
        kind for cell in made for out in cell.get("outputs", ()) for kind in out.get("data", ())
    ]
    assert "image/png" in kinds
    record = json.loads((tmp_path / "record.json").read_text())
    # what the notebook's names hold, of those that 99_template has
    assert record["parameters"] == {"preset": "smoke", "seed": 7, "epochs": 1}
