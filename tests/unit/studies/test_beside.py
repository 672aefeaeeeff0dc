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


def beside(
    recorded, values, metric="accuracy", by=("data", "method"), busy=None, given=None, **options
):
    """Draw values of (method, extra columns) beside the recorded ones, and return the figure."""
    viz.set_theme()
    run = results.Run("99_template", preset="smoke" if given else "cpu", parameters=given)
    run.busy = run.busy if busy is None else busy
    for (method, *extra), value in values:
        words = {"method": method, "data": "digits", "extra": dict(extra)}
        run.record(metric, value, unit="s" if metric == "epoch_s" else "", **words)
        run.record("other", 91.0, **words)  # which is not drawn
    figure = draw_beside(run, recorded, metric, by=list(by), **options)
    if figure is not None:
        plt.close(figure)
    return figure


def rows_of(figure):
    ax = figure.axes[0]
    names = [each.get_text() for each in ax.get_yticklabels()]
    return ax.get_title(loc="left"), names, [bar.get_width() for bar in ax.patches]


BP = [(("bp",), 91.0)]


def test_both_are_in_one_figure(recorded):
    figure = beside(recorded, [*BP, (("al",), 60.0)])
    assert rows_of(figure) == (
        "This run lies in the committed range in 1 of 2 rows",
        ["digits, BP", "digits, AL"],
        [91.0, 82.0],
    )
    diamonds = [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in figure.axes[0].lines
        if line.get_marker() == "D" and len(line.get_xdata())
    ]
    assert diamonds == [(91.0, 0), (60.0, 1)]
    assert rows_of(beside(recorded, BP, by=["method"]))[1] == ["BP"]  # one column is enough


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


def test_rivals_are_not_named_al_and_rules_and_manners_are_named_too(recorded):
    rows = recorded[2:4].assign(method="al", recipe=["dgl", "mse"])
    values = [(("al", ("recipe", recipe)), 80.0) for recipe in ("dgl", "mse")]
    figure = beside(rows, values, by=["method", "recipe"])
    assert rows_of(figure)[1] == ["DGL", "AL, mse"]
    first, second = figure.axes[0].patches
    assert first.get_facecolor()[:3] != second.get_facecolor()[:3]
    names = ["fr", "fr, new noise", "of nobody"]
    figure = beside(recorded[:3].assign(method=names), [((name,), 1.0) for name in names])
    shown = ["digits, FR", "digits, FR, new noise", "digits, of nobody"]
    assert rows_of(figure)[1] == shown
    colours = [bar.get_facecolor() for bar in figure.axes[0].patches]
    assert colours[0] == colours[1] != colours[2]


def test_one_place_can_be_asked_for(recorded):
    places = pd.concat([recorded.assign(level=1), recorded.assign(level=2, value=0.0)])
    values = [(("bp", ("level", 1)), 91.0), (("bp", ("level", 2)), 5.0)]
    title, _, widths = rows_of(beside(places, values, by=["method"], at={"level": 1}))
    assert widths == [91.0]
    assert title == "This run lies in the committed range in 1 of 1 rows"


def test_times_of_a_busy_machine_are_grey(recorded):
    load = [None, 0.03, 0.8]
    times = recorded[:3].assign(metric="epoch_s", unit="s", busy=load, method=list("abc"))
    values = [((name,), value) for name, value in zip("abc", (91.0, 93.0, 81.0), strict=True)]
    for busy, inner in ((0.9, "white"), (0.0, "0.15")):
        figure = beside(times, values, "epoch_s", ["method"], busy)
        ax = figure.axes[0]
        diamonds = [line for line in ax.lines if line.get_marker() == "D"]
        assert {line.get_markerfacecolor() for line in diamonds} == {inner}
        said = "This run over the committed results: 1.01, median of 3 rows"
        assert ax.get_title(loc="left") == said
        assert [bar.get_facecolor()[0] for bar in ax.patches] == [0.6, 0.6, 0.85]
        [legend] = figure.legends
        assert f"{busy:.0%} of the cores busy" in legend.get_texts()[1].get_text()
