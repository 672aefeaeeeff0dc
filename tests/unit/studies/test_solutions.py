"""Each solution solves its notebook's cell: the notebook runs up to it, then the solution."""

import json
from pathlib import Path

import matplotlib as mpl
import pytest

from alkit.command import contents

HOME = Path(__file__).parents[3] / "notebooks"
SOLUTIONS = sorted((HOME / "solutions").glob("*.py"))


@pytest.mark.parametrize("file", SOLUTIONS, ids=lambda file: file.stem)
@pytest.mark.filterwarnings("ignore")
def test_a_solution_solves_its_cell(file, monkeypatch, tmp_path):
    mpl.use("agg")
    monkeypatch.chdir(HOME)
    monkeypatch.setenv("ALKIT_RUN_FOLDER", str(tmp_path))
    cells = json.loads((HOME / f"{file.stem}.ipynb").read_text(encoding="utf-8"))["cells"]
    names = {"display": print, "__name__": file.stem}
    for cell in (each for each in cells if each["cell_type"] == "code"):
        exec("".join(cell["source"]), names)  # also the cell as it is given: it must run
        if "solve" in cell["metadata"].get("tags", ()):
            break
    exec(file.read_text(encoding="utf-8"), names)


def test_the_course_has_cells_to_solve():
    course = {each["name"] for each in contents() if each["shelf"] == "course"}
    # three of the four networks of the card differ in their blocks only
    assert {file.stem for file in SOLUTIONS} == course - {"06_resnet", "07_lstm", "08_transformer"}
