"""Previews show what the set holds."""

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import pytest

from alkit.data import datasets
from studies.preview import preview


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    plt.close("all")


def test_images():
    data = datasets.load("digits")
    fig = preview(data, samples=5)
    shown = [ax for ax in fig.axes if ax.images]
    assert [ax.texts[0].get_text() for ax in shown] == [str(int(y)) for y in data.train.y[:5]]
    assert "1,078 training images of 8x8" in fig.get_suptitle()


def test_texts():
    data = datasets.load("pydocs").subset(train=100)
    lengths, classes = preview(data).axes
    assert sum(patch.get_height() for patch in lengths.patches) == 100
    assert sorted(patch.get_width() for patch in classes.patches) == [20] * 5
