"""This run beside the committed results: like beside like, and a title that counts."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from alkit.figures import viz
from alkit.records import results
from studies.common.beside_records import draw_beside


@pytest.fixture
def recorded():
    rows = [("bp", 90.0), ("bp", 92.0), ("al", 80.0), ("al", 84.0), ("dtp", 70.0)]
    made = pd.DataFrame(rows, columns=["method", "value"])
    return made.assign(metric="accuracy", data="digits", preset="cpu", parameters="{}")


def beside(recorded, values, metric="accuracy", by=("data", "method"), busy=None, given=None):
    """Draw values of (method, value) beside the recorded ones, and return the figure."""
    viz.set_theme()
    run = results.Run("99_template", preset="smoke" if given else "cpu", parameters=given)
    run.busy = run.busy if busy is None else busy
    for method, value in values:
        words = {"method": method, "data": "digits"}
        run.record(metric, value, unit="s" if metric == "epoch_s" else "", **words)
        run.record("other", 91.0, **words)  # which is not drawn
    figure = draw_beside(run, recorded, metric, by=list(by))
    if figure is not None:
        plt.close(figure)
    return figure


BP = [("bp", 91.0)]


def test_both_are_in_one_figure(recorded):
    ax = beside(recorded, [*BP, ("al", 60.0)]).axes[0]
    assert ax.get_title(loc="left") == "This run lies in the committed range in 1 of 2 rows"
    assert [each.get_text() for each in ax.get_yticklabels()] == ["digits, BP", "digits, AL"]
    assert [bar.get_width() for bar in ax.patches] == [91.0, 82.0]
    diamonds = [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in ax.lines
        if line.get_marker() == "D" and len(line.get_xdata())
    ]
    assert diamonds == [(91.0, 0), (60.0, 1)]


@pytest.mark.parametrize(
    ("change", "given", "why"),
    [
        ({"data": "cifar10"}, None, "this run used digits, they used CIFAR-10."),
        ({"preset": "paper"}, None, "this run used preset cpu, they used preset paper."),
        ({"method": "fr"}, None, "other rows."),
        ({"preset": "smoke"}, {"epochs": 9, "batch_size": 32}, "this run changed epochs=9."),
    ],
)
def test_unlike_things_are_not_drawn(recorded, change, given, why, capsys):
    before = plt.get_fignums()
    assert beside(recorded.assign(**change), BP, given=given) is None
    assert capsys.readouterr().out == f"Not drawn beside the committed results: {why}\n"
    assert beside(pd.DataFrame(), BP) is None
    assert "there are none yet" in capsys.readouterr().out
    assert plt.get_fignums() == before


def test_times_of_a_busy_machine_are_grey(recorded):
    load = [None, 0.03, 0.8]
    times = recorded[:3].assign(metric="epoch_s", unit="s", busy=load, method=list("abc"))
    values = list(zip("abc", (91.0, 93.0, 81.0), strict=True))
    for busy, inner in ((0.9, "white"), (0.0, "0.15")):
        figure = beside(times, values, "epoch_s", ["method"], busy)
        ax = figure.axes[0]
        diamonds = [line for line in ax.lines if line.get_marker() == "D"]
        assert {line.get_markerfacecolor() for line in diamonds} == {inner}

        assert [bar.get_facecolor()[0] for bar in ax.patches] == [0.6, 0.6, 0.85]
        [legend] = figure.legends
        assert f"{busy:.0%} of the cores busy" in legend.get_texts()[1].get_text()
