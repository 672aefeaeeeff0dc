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


def _timeline(layers=2, batches=3):
    return simulate(al_pipeline(layers), lambda task: 1.0, batches)


def test_gantt_draws_every_interval_at_its_time_and_several_share_their_scale():
    timeline = _timeline()
    (ax,) = viz.gantts({"two layers": timeline}, "finding").axes
    drawn = sorted((p.get_x(), p.get_x() + p.get_width()) for p in ax.patches)
    assert drawn == sorted((i.start_s, i.end_s) for i in timeline.intervals)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["worker 0", "worker 1"]
    fig = viz.gantts({"short": _timeline(batches=2), "long": _timeline(batches=5)}, "both")
    assert fig.axes[0].get_xlim() == fig.axes[1].get_xlim()


def test_saved_files_are_byte_identical(tmp_path, monkeypatch):
    for folder in ("a", "b"):
        monkeypatch.setenv("ALKIT_RUN_FOLDER", str(tmp_path / folder))
        viz.save(viz.gantts({"one": _timeline()}, "AL is 2"), "x")
    for name in ("x.png", "x.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


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
