"""This run beside the committed results: like beside like, and a title that counts."""

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
    return made.assign(metric="accuracy", data="digits", preset="cpu")


def drawn(recorded, *values):
    viz.set_theme()
    run = results.Run("99_template", preset="cpu")
    for method, value in values:
        run.record("accuracy", value, method=method, data="digits")
    figure = draw_beside(run, recorded, "accuracy", by=["data", "method"])
    plt.close(figure)
    return figure.axes[0]


def test_both_are_in_one_figure(recorded):
    ax = drawn(recorded, ("bp", 91.0), ("al", 60.0))
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
    ("change", "why"),
    [
        ({"data": "cifar10"}, "this run used digits, they used CIFAR-10."),
        ({"preset": "paper"}, "this run used preset cpu, they used preset paper."),
        ({"method": "fr"}, "other rows."),
    ],
)
def test_unlike_things_are_not_drawn(recorded, change, why, capsys):
    before = plt.get_fignums()
    run = results.Run("99_template", preset="cpu")
    run.record("accuracy", 91.0, method="bp", data="digits")
    assert draw_beside(run, recorded.assign(**change), "accuracy", by=["data", "method"]) is None
    assert capsys.readouterr().out == f"Not drawn beside the committed results: {why}\n"
    assert draw_beside(run, pd.DataFrame(), "accuracy", by=["data", "method"]) is None
    assert "there are none yet" in capsys.readouterr().out
    assert plt.get_fignums() == before


def test_a_changed_parameter_is_unlike(recorded, monkeypatch, capsys):
    monkeypatch.setenv("ALKIT_RUN_SLUG", "epochs=1")
    run = results.Run("99_template", preset="cpu")
    run.record("accuracy", 91.0, method="bp", data="digits")
    assert draw_beside(run, recorded, "accuracy", by=["data", "method"]) is None
    assert "this run changed epochs=1." in capsys.readouterr().out


def test_rivals_are_not_named_al(recorded):
    rows = recorded[2:4].assign(method="al", recipe=["dgl", "mse"])
    run = results.Run("99_template", preset="cpu")
    for recipe in ("dgl", "mse"):
        run.record("accuracy", 80.0, method="al", data="digits", extra={"recipe": recipe})
    figure = draw_beside(run, rows, "accuracy", by=["method", "recipe"])
    plt.close(figure)
    [ax] = figure.axes
    assert [each.get_text() for each in ax.get_yticklabels()] == ["DGL", "AL, mse"]
    assert ax.patches[0].get_facecolor()[:3] != ax.patches[1].get_facecolor()[:3]


def test_one_column_is_enough(recorded):
    run = results.Run("99_template", preset="cpu")
    run.record("accuracy", 91.0, method="bp")
    figure = draw_beside(run, recorded, "accuracy", by=["method"])
    plt.close(figure)
    assert [each.get_text() for each in figure.axes[0].get_yticklabels()] == ["BP"]


def test_rules_and_manners_of_methods_are_named_too(recorded):
    names = ["fr", "fr, new noise", "of nobody"]
    ax = drawn(recorded[:3].assign(method=names), *((name, 1.0) for name in names))
    shown = [each.get_text() for each in ax.get_yticklabels()]
    assert shown == ["digits, FR", "digits, FR, new noise", "digits, of nobody"]
    colours = [bar.get_facecolor() for bar in ax.patches]
    assert colours[0] == colours[1] != colours[2]


def test_one_place_can_be_asked_for(recorded):
    places = pd.concat([recorded.assign(level=1), recorded.assign(level=2, value=0.0)])
    run = results.Run("99_template", preset="cpu")
    run.record("accuracy", 91.0, method="bp", extra={"level": 1})
    run.record("accuracy", 5.0, method="bp", extra={"level": 2})
    figure = draw_beside(run, places, "accuracy", by=["method"], at={"level": 1})
    plt.close(figure)
    ax = figure.axes[0]
    assert [bar.get_width() for bar in ax.patches] == [91.0]
    assert ax.get_title(loc="left") == "This run lies in the committed range in 1 of 1 rows"


def test_times_of_a_busy_machine_are_grey(recorded):
    machines = ["2 cores", "2 cores, 3% busy before", "2 cores, 80% busy before"]
    times = recorded[:3].assign(metric="epoch_s", unit="s", machine=machines, method=list("abc"))
    for busy, inner in ((0.9, "white"), (0.0, "0.15")):
        run = results.Run("99_template", preset="cpu")
        run.busy = busy
        for method, value in zip("abc", (91.0, 93.0, 81.0), strict=True):
            run.record("epoch_s", value, method=method, unit="s")
        run.record("accuracy", 91.0, method="a", unit="%")
        figure = draw_beside(run, times, "epoch_s", by=["method"])
        ax = figure.axes[0]
        diamonds = [line for line in ax.lines if line.get_marker() == "D"]
        assert {line.get_markerfacecolor() for line in diamonds} == {inner}
        assert (
            ax.get_title(loc="left")
            == "This run over the committed results: 1.01, median of 3 rows"
        )
        shades = [bar.get_facecolor()[0] for bar in ax.patches]
        assert shades == [0.6, 0.6, 0.85]
        [legend] = figure.legends
        assert f"{busy:.0%} of the cores busy" in legend.get_texts()[1].get_text()
        plt.close(figure)
