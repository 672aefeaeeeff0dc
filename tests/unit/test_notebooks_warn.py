"""A notebook's cell that warns fails; one that shows a progress bar does not."""

import shutil
import subprocess
import sys

import nbformat

from alkit.base.paths import root

BAR = """
from tqdm import tqdm
for _ in tqdm(range(3), desc="known"):
    pass
for _ in tqdm(iter(range(3))):
    pass
"""
WARNING = "import warnings\nwarnings.warn('something will break')"


def test_a_cell_that_warns_fails(tmp_path):
    shutil.copy(root() / "notebooks" / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    cells = [nbformat.v4.new_code_cell(each) for each in (BAR, WARNING, "print('well')")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "made.ipynb")
    command = [sys.executable, "-m", "pytest", "-q", "--nbval-lax", "--nbval-current-env"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "made.ipynb"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "made.ipynb::Cell 1 writes to stderr" in done.stdout
    assert "UserWarning: something will break" in done.stdout
