"""Figures show the data they are given."""

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import pytest
from matplotlib.artist import Artist

from alkit.lab import viz
from alkit.schedule.clock import simulate
from alkit.schedule.task import al_pipeline


@pytest.fixture(autouse=True)
def _closed_figures():
    viz.set_theme()
    yield
    plt.close("all")


def _timeline():
    return simulate(al_pipeline(2), lambda task: 1.0, 3)


def test_gantt_draws_every_interval_at_its_time():
    timeline = _timeline()
    (ax,) = viz.gantts({"two layers": timeline}, "finding").axes
    drawn = sorted((p.get_x(), p.get_x() + p.get_width()) for p in ax.patches)
    assert drawn == sorted((i.start_s, i.end_s) for i in timeline.intervals)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["worker 0", "worker 1"]


def test_a_figure_is_closed_before_it_is_saved():
    """The end of a cell in another thread shows all open figures, and meanwhile changes sizes."""

    class Spy(Artist):
        def draw(self, renderer):
            seen.append(plt.get_fignums())

    seen = []
    fig, ax = plt.subplots()
    ax.add_artist(Spy())
    assert viz.png(fig).startswith(b"\x89PNG")
    assert seen
    assert not any(seen)
