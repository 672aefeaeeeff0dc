"""Committed figures and tables are those of the records, and their titles say what is drawn."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from alkit.data.paths import root
from alkit.figures import titles, viz
from alkit.records import results
from studies import gallery
from studies.common import named_contrasts, page_tables
from studies.dtp import tables as dtp_tables
from studies.ladder import tables as ladder_tables

FIGURES = root() / "figures"
NUMBER = re.compile(r"-?\d+\.\d+")


def _rounded(path: Path) -> tuple[str, np.ndarray]:
    """Return an SVG without its numbers, and these: other processors differ in last digits."""
    text = path.read_text(encoding="utf-8")
    return NUMBER.sub("#", text), np.array([float(each) for each in NUMBER.findall(text)])


@pytest.mark.parametrize("name", [*gallery.FIGURES, *gallery.PAGES])
def test_a_figure_is_that_of_the_records_and_its_title_says_what_is_drawn(name, tmp_path):
    figure = gallery.draw(name)
    if figure is not None:
        plt.close(figure)
        check_titles(figure)
    if name in gallery.PAGES:
        return
    committed = FIGURES / f"{name}.svg"
    notebook = nbformat.read(root() / "notebooks" / f"{name}.ipynb", as_version=4)
    first = notebook.cells[0].source
    if figure is None:
        assert not committed.exists()
        assert "![" not in first
        return
    png, svg = viz.save(figure, name, tmp_path)
    told = gallery.alternative(name, figure)
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
    page_tables.put_figure(path, "new")
    source = nbformat.read(path, as_version=4).cells[0].source
    assert source == "# 01 A title\n\nWords.\n\n![new](../figures/01_x.png)"


NAMES = re.compile(r"\b(1F1B|ResNet-\d+|CIFAR-\d+|SST-\d)\b")


def drawn(figure: Figure) -> np.ndarray:
    """Return all numbers that a figure draws: of bars, points, lines, ranges and maps."""
    found: list[np.ndarray] = [np.array([])]
    for ax in figure.axes:
        for line in ax.lines:
            found += [np.asarray(each, float) for each in line.get_data()]
        for bar in (patch for patch in ax.patches if isinstance(patch, Rectangle)):
            found.append(np.array([bar.get_x(), bar.get_y(), bar.get_width(), bar.get_height()]))
            found.append(np.array(bar.get_xy()) + [bar.get_width(), bar.get_height()])
        for each in ax.collections:
            found.append(np.asarray(each.get_offsets(), float).ravel())
            if isinstance(each, LineCollection):
                found += [segment.ravel() for segment in each.get_segments()]
            elif each.get_array() is not None:
                found.append(np.ma.asarray(each.get_array(), float).compressed())
    return np.concatenate([each.ravel() for each in found])


def undrawn(figure: Figure) -> list[float]:
    """Return the values that a title's numbers are made from and that the figure does not draw."""
    there = drawn(figure)
    wanted = [each for _, numbers in titles.titled(figure) for n in numbers for each in n.drawn]
    return [each for each in wanted if not np.isclose(there, each, rtol=1e-6, atol=1e-9).any()]


def check_titles(figure: Figure) -> None:
    assert titles.titled(figure), "its title is not made by alkit.figures.titles.title"
    assert undrawn(figure) == []
    for words, _ in titles.titled(figure):
        typed = re.sub(r"\{[^}]*\}", "", NAMES.sub("", words))
        assert not re.search(r"\d", typed), f"a typed number in {words!r}"
    for ax in figure.axes:
        panel = ax.get_title(loc="left")
        made_by_title = panel in [gallery.finding(figure)]
        assert made_by_title or titles.complaint(panel, (0, 1)) == ""


NOTEBOOKS = sorted((root() / "notebooks").glob("*.ipynb"))
MODULES = [
    path
    for folder in ("notebooks/studies", "alkit/figures")
    for path in sorted((root() / folder).rglob("*.py"))
    if path.name != "titles.py"
]
BY_HAND = re.compile(r"\.set_title\(|\.suptitle\(|\.set\((?:[^()]|\([^()]*\))*\btitle=")


def code_of(path: Path) -> str:
    if path.suffix == ".py":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n".join(cell.source for cell in cells if cell.cell_type == "code")


@pytest.mark.parametrize("path", [*NOTEBOOKS, *MODULES], ids=lambda path: path.name)
def test_no_title_is_put_by_hand(path):
    assert BY_HAND.findall(code_of(path)) == [], "use alkit.figures.titles"


@pytest.fixture
def figure():
    viz.set_theme()
    figure, ax = plt.subplots()
    ax.barh([0, 1], [2.0, 8.0])
    yield figure
    plt.close(figure)


def test_numbers_are_filled_in_and_found_if_they_are_drawn(figure):
    titles.title(
        figure.axes[0], "One takes {share:.2f} of {other}", share=titles.ratio(2, 8), other="B"
    )
    assert figure.axes[0].get_title(loc="left") == "One takes 0.25 of B"
    assert undrawn(figure) == []
    titles.title(figure, "One takes {share:.2f} of the other", share=titles.ratio(2, 7.5))
    assert undrawn(figure) == [7.5]


@pytest.mark.parametrize(
    ("words", "apart", "complaint"),
    [
        ("a b c d e f g h i j k l m", None, "13 words"),
        ("Overlap is up to twice as fast", None, "'up to'"),
        ("The pipeline is fastest", None, "give apart="),
        ("The pipeline is fastest", (1.2, 1.1), "do not part"),
        ("The pipeline is fastest", (1.1, 1.2), ""),
        ("a b c d e f g h i j k l", None, ""),
    ],
)
def test_what_a_title_may_not_say(words, apart, complaint, figure):
    said = titles.complaint(words, apart)
    assert complaint in said
    assert bool(said) == bool(complaint)
    if complaint:
        with pytest.warns(UserWarning, match="the title"):
            titles.title(figure, words, apart)


def assert_in_results(name: str, table: pd.DataFrame) -> None:
    told = f"<!-- {name} -->\n{page_tables.markdown(table)}\n<!-- /{name} -->"
    assert told in (root() / "RESULTS.md").read_text()


def test_a_row_a_contrast_that_has_runs():
    told = named_contrasts.contrasts()
    assert_in_results("contrasts", told)
    table = told.set_index(["notebook", "set", "contrast"])
    assert table.index.is_unique
    gaps = dtp_tables.contrast_gaps(results.load("52_training", "cifar"))
    for (*setting, name), (gap, p) in gaps.items():
        row = table.loc["[52](notebooks/52_training.ipynb)", ", ".join(setting), name]
        assert row["difference (n)"] == f"{gap} points"
        assert row["p, Holm"] == (f"{p:.3f}" if p >= 0.001 else "< 0.001")


def test_a_row_a_hypothesis_that_has_runs():
    table = named_contrasts.hypotheses()
    kept = results.load("06_label_ladder", "cpu")
    assert list(table.contrast) == list(ladder_tables.explored(kept).contrast)
    assert_in_results("hypotheses", table)
    assert_in_results("reading", named_contrasts.reading())
    assert_in_results("corrections", named_contrasts.corrections())


def test_what_the_runs_took_is_counted_from_the_records():
    table = named_contrasts.spent()
    kept = results.load("32_resnet_accuracy", "cpu")
    row = table.set_index("notebook").loc["[32](notebooks/32_resnet_accuracy.ipynb)"]
    assert row.set == "cifar10, resnet20"
    assert row["rates tried"] == "0.01, 0.03, 0.1, 0.3"
    assert row.runs == (kept.metric == "accuracy").sum() + 4 * 4  # four cases at four rates
    hours = kept.value[kept.metric == "train_s"].astype(float).sum() / 3600
    assert row["core-hours"] == f"{hours:.2g}"
    assert set(row.processors.split(", ")) <= {"Intel(R) Xeon(R) Processor", "AMD EPYC"}
    assert_in_results("spent", table)


def test_a_record_that_is_not_there_has_no_row(monkeypatch):
    kept = results.load
    monkeypatch.setattr(
        results, "load", lambda name, preset: kept(name, preset)[: 0 if name[:2] == "52" else None]
    )
    assert not any("52" in each for each in named_contrasts.contrasts().notebook)


def test_one_seed_has_no_p(monkeypatch):
    kept = results.load

    def first_seed(name, preset):
        rows = kept(name, preset)
        return rows[rows.seed.isin([0, 100])] if name == "52_training" else rows

    monkeypatch.setattr(results, "load", first_seed)
    table = named_contrasts.contrasts()
    own = table[table.notebook.str.startswith("[52]")]
    assert len(own)
    assert set(own["p, Holm"]) == {""}
    assert set(own.verdict) == {"undecided"}
