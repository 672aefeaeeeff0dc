"""The command: what it prints, and its exit codes. What a run prints: see `test_runs.py`."""

import nbformat
import pandas as pd
import pytest

import alkit
from alkit.records import cli, parameters, results, runs, tables
from alkit.records.execution import Busy, RunFailed


@pytest.fixture(autouse=True)
def _in_a_checkout(notebook, checkout, monkeypatch):
    """A checkout with one notebook, which is also the working directory."""
    monkeypatch.chdir(checkout)


def test_notebooks_are_listed_and_found_by_number(checkout, capsys):
    (checkout / "notebooks/params").mkdir()
    for name in ("10_x.cpu.yaml", "10_x.sweep.yaml", "10_x_seeds.sweep.yaml"):
        (checkout / "notebooks/params" / name).touch()
    cells = [nbformat.v4.new_markdown_cell("# All at once\n\nA claim.")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), "notebooks/02_all.ipynb")
    assert cli.main(["list"]) == 0
    assert capsys.readouterr().out.splitlines()[3:] == [
        "Not in notebooks/index.yaml",
        "  02_all  All at once  smoke",
        "  10_x    words        smoke cpu",
    ]
    line = "{name: 10_x, family: al, shelf: lab, minutes: 5, title: A title, sentence: It does x.}"
    (checkout / "notebooks/index.yaml").write_text(f"- {line}\n")
    assert cli.main(["list"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "Lab: repeat or change something",
        "  10_x  5 min  A title  smoke cpu",
        "Not in notebooks/index.yaml",
        "  02_all  All at once  smoke",
    ]
    assert parameters.find_notebook("02").name == "02_all.ipynb"
    with pytest.raises(parameters.ParameterError, match="no notebook 1"):
        parameters.find_notebook("1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run 10_y", "alkit: there is no notebook 10_y, did you mean '10_x'?"),
        ("run 10_x --preset cpu", "alkit: 10_x.ipynb has no preset 'cpu' (there is: smoke)"),
        ("run 10_x -p lrr=1", "alkit: 10_x.ipynb: no parameter 'lrr', did you mean 'lr'?"),
        ("run 10_x -p lr=fast", "alkit: 10_x.ipynb: lr must be float, not 'fast'"),
        ("run 10_x -p lr", "alkit: -p lr: write NAME=VALUE"),
        ("run 10_x --timeout 0", "alkit: the time limit is 0 s"),
        ("sweep none.yaml", "alkit: none.yaml cannot be read"),
        ("sweep none.yaml --jobs 0", "alkit: jobs is 0"),
        ("sweep none.yaml --part 3/2", "alkit: part is 3/2: give 1/2 to 2/2"),
        ("run 10_x -p lr=010", "alkit: 10_x.ipynb: lr must be float, not '010'"),
        ("results --add none.json", "alkit: none.json cannot be read: No such file"),
    ],
)
def test_bad_input_is_one_message_and_code_2(words, message, capsys):
    assert cli.main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words", ["", "fly", "run", "data", "run 10_x --timeout soon", "sweep x --part 3"]
)
def test_a_bad_command_line_is_code_2(words, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    assert ended.value.code == 2
    assert "usage: alkit" in capsys.readouterr().err


def test_the_version_and_rows_where_they_are_asked_for(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"alkit {alkit.__version__}\n"
    run = results.Run("10_x")
    run.record("accuracy", 97.123, method="al")
    run.record("sizes", [1, 2])
    rows = results.read(run.save())
    cli._print_rows(rows, False)
    assert capsys.readouterr().out == "2 values recorded; --rows prints them\n"
    cli._print_rows(rows, True)
    out = capsys.readouterr().out
    assert "97.12" in out
    assert "[1, 2]" in out
    assert "model" not in out  # a column that says nothing


def stand_in(monkeypatch, name, outcome):
    """Let a function of the runner return or raise the outcome, and return what it was given."""
    given = []

    def called(*arguments, **options):
        given.append((arguments, options))
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(runs, name, called)
    return given


def test_a_failed_run_is_code_1_and_an_interrupt_130(monkeypatch, capsys):
    given = stand_in(monkeypatch, "run", RunFailed("10_x.ipynb", 2, "the reason", None))
    assert cli.main("run 10_x --preset cpu --record --timeout 7".split()) == 1
    assert capsys.readouterr().err == "alkit: 10_x.ipynb failed in cell 2:\nthe reason\n"
    assert given[0][0][1:] == ("cpu", {})
    assert given[0][1] == {"record": True, "timeout_s": 7}
    stand_in(monkeypatch, "run", Busy("it is in use by process 7"))
    assert cli.main(["run", "10_x"]) == 1
    assert capsys.readouterr().err == "alkit: it is in use by process 7\n"
    stand_in(monkeypatch, "run", KeyboardInterrupt())
    assert cli.main(["run", "10_x"]) == 130
    assert capsys.readouterr().err == "alkit: interrupted; no process of it is left\n"


def test_values_are_literals_or_words(monkeypatch):
    given = stand_in(monkeypatch, "run", RunFailed("x", 1, "", None))
    values = ["mode=2026", "-p", "lr=1e-3", "seeds=[1,2]", "preset=a=b"]
    cli.main(["run", "10_x", "-p", *values])
    expected = {"mode": "2026", "lr": 1e-3, "seeds": [1, 2], "preset": "a=b"}
    assert given[0][0][2] == expected


def saved(preset="cpu"):
    """Commit a run; return its record."""
    run = results.Run("10_x", preset)
    for seed, value in enumerate((97.0, 97.8)):
        run.record("accuracy", value, method="al", seed=seed, unit="%")
    path = run.save()
    assert cli.main(["results", "--add", str(path)]) == 0
    return path


def test_sweep_prints_summary_and_failures(monkeypatch, checkout, capsys):
    path = saved()
    partial = checkout / "runs" / "b" / "10_x.partial.ipynb"
    nothing = {"seconds": None, "peak_mib": None, "cell": None, "error": None}
    done = {"name": "a", "state": "done", "path": path, "run": "r1"} | nothing
    bad = done | {"name": "b", "state": "failed", "path": partial, "cell": 4, "error": "why"}
    gone = bad | {"name": "c", "path": None, "cell": None}
    (known,) = tables.runs()
    before = done | {"name": "d", "state": "before", "path": None, "run": known["run"]}
    capsys.readouterr()
    given = stand_in(monkeypatch, "sweep", pd.DataFrame([done, bad, gone]))
    options = "--jobs 3 --record --force --threads 2 --timeout 9 --part 2/3"
    assert cli.main(["sweep", "s.yaml", *options.split()]) == 1
    assert given[0][0] == ("s.yaml", 3, True)
    assert given[0][1] == {"force": True, "threads": 2, "timeout_s": 9, "part": (2, 3)}
    out, err = capsys.readouterr()
    assert "10_x (cpu)" in out
    assert "97.4" in out
    assert out.endswith("2 failed, 1 done\n")
    first = "alkit: b, cell 4 (runs/b/10_x.partial.ipynb):\nwhy\n"
    assert err == first + "alkit: c (nothing kept):\nwhy\n"
    stand_in(monkeypatch, "sweep", pd.DataFrame([before]))
    assert cli.main(["sweep", "s.yaml"]) == 0
    assert "97.4" in capsys.readouterr().out


def test_results_prints_the_committed_records(capsys):
    assert cli.main(["results"]) == 0
    assert capsys.readouterr().out.startswith("no records in notebooks/results yet")
    saved()
    saved("demo")
    assert capsys.readouterr().out.startswith("written   notebooks/results/10_x.csv\n")
    assert cli.main(["results", "--notebook", "notebooks/10_x.ipynb", "--preset", "cpu"]) == 0
    head, names, values, *_ = capsys.readouterr().out.splitlines()
    assert head == "10_x (cpu), commit unknown"
    assert names.split() == "metric method unit n mean sd min max median".split()
    assert values.split() == "accuracy al % 2 97.4 0.5657 97 97.8 97.4".split()
    assert cli.main(["results", "--notebook", "10", "--preset", "demo"]) == 0
    assert capsys.readouterr().out.startswith("10_x (demo)")
    assert cli.main(["results", "--preset", "paper"]) == 2
    assert "there are: 10_x (cpu), 10_x (demo)" in capsys.readouterr().err
