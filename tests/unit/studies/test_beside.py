"""This run beside the record: one figure, and a title that counts."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from alkit.figures import viz
from alkit.records import results
from studies.beside import draw_beside


@pytest.fixture
def recorded():
    rows = [("bp", 90.0), ("bp", 92.0), ("al", 80.0), ("al", 84.0), ("dtp", 70.0)]
    made = pd.DataFrame(rows, columns=["method", "value"])
    return made.assign(metric="accuracy", data="digits")


def drawn(recorded, *values):
    viz.set_theme()
    run = results.Run("99_template", preset="smoke")
    for method, value in values:
        run.record("accuracy", value, method=method, data="digits")
    figure = draw_beside(run, recorded, "accuracy", by=["data", "method"])
    plt.close(figure)
    return figure.axes[0]


def test_both_are_in_one_figure(recorded):
    ax = drawn(recorded, ("bp", 91.0), ("al", 60.0))
    assert ax.get_title(loc="left") == "This run lies in the record's range in 1 of 2 rows"
    assert [each.get_text() for each in ax.get_yticklabels()] == [
        "digits, BP",
        "digits, AL",
        "digits, DTP",
    ]
    assert [bar.get_width() for bar in ax.patches] == [91.0, 82.0, 70.0]
    diamonds = [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in ax.lines
        if line.get_marker() == "D" and len(line.get_xdata())
    ]
    assert diamonds == [(91.0, 0), (60.0, 1)]


def test_what_only_this_run_has_gets_a_row(recorded):
    ax = drawn(recorded, ("fr", 91.0))
    assert ax.get_title(loc="left") == "This run's rows are others than the record's"
    assert len(ax.get_yticklabels()) == 4


def test_without_a_record_it_says_so():
    ax = drawn(pd.DataFrame(), ("bp", 91.0))
    assert ax.get_title(loc="left") == "This run; there is no record yet"
    assert not ax.patches


def test_one_column_is_enough(recorded):
    run = results.Run("99_template", preset="smoke")
    run.record("accuracy", 91.0, method="bp")
    figure = draw_beside(run, recorded, "accuracy", by=["method"])
    plt.close(figure)
    assert [each.get_text() for each in figure.axes[0].get_yticklabels()] == ["BP", "AL", "DTP"]


def test_rules_and_manners_of_methods_are_named_too(recorded):
    names = ["fr", "fr, new noise", "of nobody"]
    ax = drawn(recorded[:3].assign(method=names))
    shown = [each.get_text() for each in ax.get_yticklabels()]
    assert shown == ["digits, FR", "digits, FR, new noise", "digits, of nobody"]
    colours = [bar.get_facecolor() for bar in ax.patches]
    assert colours[0] == colours[1] != colours[2]


def test_one_place_can_be_asked_for(recorded):
    places = pd.concat([recorded.assign(level=1), recorded.assign(level=2, value=0.0)])
    run = results.Run("99_template", preset="smoke")
    run.record("accuracy", 91.0, method="bp", extra={"level": 1})
    run.record("accuracy", 5.0, method="bp", extra={"level": 2})
    figure = draw_beside(run, places, "accuracy", by=["method"], at={"level": 1})
    plt.close(figure)
    ax = figure.axes[0]
    assert [bar.get_width() for bar in ax.patches] == [91.0, 82.0, 70.0]
    assert ax.get_title(loc="left") == "This run lies in the record's range in 1 of 1 rows"


def test_times_of_a_busy_machine_are_grey(recorded):
    machines = ["2 cores", "2 cores, 3% busy before", "2 cores, 80% busy before"]
    times = recorded[:3].assign(metric="epoch_s", unit="s", machine=machines, method=list("abc"))
    for busy, inner in ((0.9, "white"), (0.0, "0.15")):
        run = results.Run("99_template", preset="smoke")
        run.busy = busy
        run.record("epoch_s", 91.0, method="a", unit="s")
        run.record("accuracy", 91.0, method="a", unit="%")
        figure = draw_beside(run, times, "epoch_s", by=["method"])
        ax = figure.axes[0]
        diamonds = [line for line in ax.lines if line.get_marker() == "D"]
        assert {line.get_markerfacecolor() for line in diamonds} == {inner}
        assert ax.get_title(loc="left") == "This run over the record: 1.01, median of 1 rows"
        shades = [bar.get_facecolor()[0] for bar in ax.patches]
        assert shades == [0.6, 0.6, 0.85]
        [legend] = figure.legends
        assert f"{busy:.0%} of the cores busy" in legend.get_texts()[1].get_text()
        plt.close(figure)
