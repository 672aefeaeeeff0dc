"""The figures that everybody sees are those of the committed records, and say so in words."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest

from alkit.data.paths import root
from alkit.figures import titles, viz
from studies import gallery, publish

FIGURES = root() / "figures"
NUMBER = re.compile(r"-?\d+\.\d+")


def _rounded(path: Path) -> tuple[str, np.ndarray]:
    """Return an SVG without its numbers, and these: other processors differ in last digits."""
    text = path.read_text(encoding="utf-8")
    return NUMBER.sub("#", text), np.array([float(each) for each in NUMBER.findall(text)])


@pytest.mark.parametrize("name", gallery.FIGURES)
def test_a_figure_is_that_of_the_records(name, tmp_path):
    figure = gallery.draw(name)
    committed = FIGURES / f"{name}.svg"
    notebook = nbformat.read(root() / "notebooks" / f"{name}.ipynb", as_version=4)
    first = notebook.cells[0].source
    if figure is None:
        assert not committed.exists()
        assert "![" not in first
        return
    png, svg = viz.save(figure, name, tmp_path)
    told = gallery.alternative(name, figure)
    plt.close(figure)
    assert first.endswith(f"![{told}](../figures/{name}.png)"), "run make results"
    ours, theirs = _rounded(svg), _rounded(committed)
    assert ours[0] == theirs[0], "run make results"
    np.testing.assert_allclose(ours[1], theirs[1], atol=0.05)
    assert png.stat().st_size > 5000
    assert committed.with_suffix(".png").exists()


def test_figures_are_those_of_notebooks_and_small():
    known = {
        f"{name}{kind}" for name in [*gallery.FIGURES, *gallery.PAGES] for kind in (".png", ".svg")
    }
    there = {path.name for path in FIGURES.iterdir()} - {"README.md"}
    assert there <= known
    assert sum(path.stat().st_size for path in FIGURES.iterdir()) < 10_000_000


def test_a_long_title_is_broken_not_cut(monkeypatch):
    def long(rows: pd.DataFrame) -> plt.Figure:
        """Draw nothing."""
        figure, ax = plt.subplots(figsize=(3, 2))
        titles.title(ax, "A finding longer than three inches can hold: +1.5 [-1.0, +4.0]")
        return figure

    monkeypatch.setitem(gallery.FIGURES, "long", gallery.Entry(long, ()))
    figure = gallery.draw("long")
    figure.draw_without_rendering()
    title = figure.axes[0]._left_title
    assert "\n" in title.get_text()
    assert title.get_window_extent().x1 <= figure.bbox.width
    told = gallery.alternative("long", figure)
    assert "[" not in told  # of Markdown
    assert told.startswith("A finding longer than three inches can hold: +1.5")
    assert told.endswith(" from -1.0 to +4.0. Nothing.")


def test_a_figure_replaces_the_one_before(tmp_path):
    cell = nbformat.v4.new_markdown_cell("# 01 A title\n\nWords.\n\n![old](../figures/x.png)")
    path = tmp_path / "01_x.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    publish.put_figure(path, "new")
    source = nbformat.read(path, as_version=4).cells[0].source
    assert source == "# 01 A title\n\nWords.\n\n![new](../figures/01_x.png)"
