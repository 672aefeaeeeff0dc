"""Titles are short, name no maximum, a winner only where ranges part, and drawn numbers."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from alkit.data.paths import root
from alkit.figures import titles, viz
from studies import gallery

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


@pytest.mark.parametrize("name", [*gallery.FIGURES, *gallery.PAGES])
def test_a_title_says_what_is_drawn(name):
    figure = gallery.draw(name)
    if figure is None:
        pytest.skip("no record of it yet")
    plt.close(figure)
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
