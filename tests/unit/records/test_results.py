"""Results: what may be recorded, what is read back, and the statistics on it."""

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from alkit.data import paths
from alkit.records import origin, results, tables
from tests.unit.records.helpers import ROWS, filled

pytestmark = pytest.mark.usefixtures("checkout")


def recorded(run):
    """Save a run and put it into the tables."""
    tables.merge([run.save()])
    return results.load(run.notebook, run.preset)


def test_a_record_comes_back_as_it_went_in():
    run = filled(lr=0.1, cuts=None)
    path = run.save()
    assert path.name == "record.json"
    assert results.load().empty  # of a run alone, nothing is committed
    frame = recorded(run)
    assert list(frame.columns) == list(results.COLUMNS)
    assert list(zip(frame["method"], frame["seed"], frame["value"], strict=True)) == ROWS
    assert set(frame["n"]) == {360}
    assert set(frame["unit"]) == {"%"}
    assert frame["model"].isna().all()
    assert set(frame["parameters"]) == {'{"cuts": null, "lr": 0.1}'}
    pd.testing.assert_frame_equal(frame, results.read(path))


def test_a_record_says_how_it_was_made_how_busy_the_machine_was_and_not_by_whom(monkeypatch):
    record = json.loads(filled(lr=0.1).save().read_text())
    fields = "notebook preset parameters commit versions threads machine date busy rows"
    assert list(record) == fields.split()
    names = [each.split()[0] for each in record["versions"].split(", ")]
    assert names == ["python", "torch", "numpy", "alkit"]
    assert f"numpy {np.__version__}" in record["versions"]
    assert record["threads"] == torch.get_num_threads()
    assert record["machine"].startswith(f"{os.cpu_count()} cores, ")
    assert record["machine"].endswith(" GiB")
    assert 0 <= record["busy"] <= 1
    assert record["parameters"] == {"lr": 0.1}
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert json.loads(filled().save().read_text())["threads"] == 3
    ticks = iter(
        [(100, 200), (130, 240), (0, 0), (0, 0)]
    )  # 30 of 40 idle; a system that says nothing
    monkeypatch.setattr(origin, "_ticks", lambda: next(ticks))
    assert set(results.read(filled().save())["busy"]) == {0.25}
    assert results.busy() == 0


def test_a_run_lies_where_its_runner_says_or_under_its_parameters(monkeypatch, checkout):
    one, other = filled(seed=1).save(), filled(seed=2).save()
    assert one.parents[1] == other.parents[1] == checkout / "runs"
    assert one != other
    assert one.parent.name.startswith("02_al.cpu.r")
    monkeypatch.setenv("ALKIT_RUN_FOLDER", str(checkout / "runs" / "x"))
    monkeypatch.setenv("ALKIT_RUN_PARAMETERS", '{"seed": 3}')
    run = results.Run("02_al", "cpu")
    assert run.save() == checkout / "runs" / "x" / "record.json"
    assert run.parameters == {"seed": 3}


def test_a_notebook_that_is_run_by_hand_knows_its_parameters_too(notebook, monkeypatch):
    assert results.Run("10_x").parameters == {}  # a script
    main = sys.modules["__main__"]
    held = {"preset": "smoke", "mode": "ok", "seed": 9, "lr": 0.5, "seeds": [1], "depth": None}
    for name, value in {"get_ipython": None, "other": 1, **held}.items():
        monkeypatch.setattr(main, name, value, raising=False)
    run = results.Run("10_x")
    assert run.parameters == held
    assert run.changed == {"seed": 9, "lr": 0.5, "seeds": [1]}
    assert results.Run("11_y", parameters={"seed": 9}).changed == {}  # of somewhere else
    monkeypatch.setattr(main, "seed", object(), raising=False)  # a cell took the name
    with pytest.raises(ValueError, match="parameters of 10_x, as they are now: seed must be int"):
        results.Run("10_x")


def test_numbers_of_any_library_become_plain_ones():
    run = results.Run("x")
    run.record("a", np.float64(0.5), seed=np.int64(3))
    run.record("b", torch.tensor(2.5))
    run.record("c", np.bool_(True))
    run.record("d", (1, np.float32(0.5), "word", [2, 3]), extra={"epoch": torch.tensor(7)})
    assert [row["value"] for row in run.rows] == [0.5, 2.5, True, [1, 0.5, "word", [2, 3]]]
    assert [type(row["value"]) for row in run.rows] == [float, float, bool, list]
    frame = results.read(run.save())
    assert frame["seed"][0] == 3
    assert frame["epoch"][3] == 7


PLAIN, FINITE = "'loss' is a .*record a number, a string or a list", "finite numbers only"
REFUSED = [  # a value, further words, what is said
    *((value, {}, PLAIN) for value in (torch.ones(2), np.ones(2), {"a": 1}, None, 1j, {1})),
    *((value, {}, PLAIN) for value in (torch.ones(1), [torch.ones(2)])),
    *((value, {}, FINITE) for value in (np.nan, float("inf"), np.float32("-inf"), [0.0, np.nan])),
    *((1.0, {"seed": value}, "'seed' .*whole number") for value in ("0", 0.5, True)),
    *((1.0, {"n": value}, "'n' .*whole number") for value in ("0", 0.5, True)),
    (1.0, {"extra": {"commit": "mine", "run": 1}}, r"\['commit', 'run'\].*names are taken"),
    ("abc", {"unit": "%"}, "loss is 'abc'"),
]


@pytest.mark.parametrize(("value", "words", "said"), REFUSED, ids=str)
def test_what_is_no_plain_finite_value_is_refused(value, words, said):
    with pytest.raises((TypeError, ValueError), match=said):
        results.Run("x").record("loss", value, **words)


def test_names_do_not_lead_out_of_their_folder():
    for arguments in (("../x",), ("x", "a/b"), ("",)):
        with pytest.raises(ValueError, match="use letters"):
            results.Run(*arguments)


def test_a_cell_run_twice_counts_once(caplog):
    run = results.Run("x")
    run.record("loss", 1.0, method="al", extra={"epoch": 1})
    run.record("loss", 2.0, method="al", extra={"epoch": 2})
    assert not caplog.messages
    run.record("loss", 3.0, method="al", extra={"epoch": 1})
    assert [row["value"] for row in run.rows] == [3.0, 2.0]
    assert "was recorded before" in caplog.text


def test_a_failed_save_leaves_the_old_record_and_nothing_else(monkeypatch):
    path = filled().save()
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        filled().save()
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_load_takes_what_is_asked_for_and_reads_no_other():
    assert list(results.load().columns) == list(results.COLUMNS)
    for name, preset in (("02_al", "cpu"), ("02_al", "demo"), ("03_x", "cpu")):
        recorded(filled(name, preset))
    assert len(results.load()) == 12
    assert len(results.load("02_al")) == 8
    assert set(results.load(preset="cpu")["notebook"]) == {"02_al", "03_x"}
    assert set(results.load(preset="cpu")["preset"]) == {"cpu"}
    assert results.load("04").empty
    (paths.records_dir() / "03_x.csv").write_text("{")
    assert len(results.load("02_al", "cpu")) == 4
    with pytest.raises(
        ValueError, match="03_x.csv, line 1, cannot be read: its first line must name the columns"
    ):
        results.load(preset="cpu")
    assert results.read(results.Run("x").save()).empty
    assert results.read("x.ipynb").empty  # a notebook that has recorded nothing


def git(folder, *words):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_commit_tells_a_changed_source_from_a_new_record(checkout, monkeypatch):
    def commit():
        return json.loads(filled().save().read_text())["commit"]

    (checkout / ".gitignore").write_text("/runs/\n")
    assert commit() == "unknown"
    git(checkout, "init", "-q")
    assert commit() == "unknown"
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "first")
    head = git(checkout, "rev-parse", "--short", "HEAD")
    assert commit() == head
    recorded(filled("03"))
    assert commit() == head
    (checkout / "new.py").touch()
    assert commit() == head + "+"
    monkeypatch.setenv("PATH", str(checkout))
    assert commit() == "unknown"


def test_summary_of_extra_fields_that_are_lists_or_have_a_statistic_s_name():
    run = filled()
    for seed, gap in enumerate((2.0, 4.0)):
        run.record("gap", gap, method="bp", seed=seed, extra={"mean": 0.5, "cuts": [1, 2]})
    stats = results.summary(results.read(run.save())).set_index("metric").loc["gap"]
    assert (stats["n"], stats["mean"], stats["mean of a row"], stats["cuts"]) == (
        2,
        3,
        0.5,
        "[1, 2]",
    )


def test_summary_of_known_numbers():
    run = filled()
    run.record("passed", True, method="bp")
    run.record("report", "text", method="bp")
    run.record("curve", [1, 2], method="bp")
    stats = results.summary(results.read(run.save()))
    assert list(stats["method"]) == ["bp", "al"]
    first = stats.iloc[0]
    assert (first["n"], first["min"], first["max"]) == (2, 97.0, 97.8)
    assert first["mean"] == first["median"] == pytest.approx(97.4)
    assert first["sd"] == pytest.approx(0.8 / 2**0.5)
    pooled = results.summary(results.read(run.save()), by=["metric"])
    assert pooled["n"].item() == 4
    assert results.summary(results.load()).empty


def test_table_is_markdown_with_a_digit_of_every_spread():
    spreads = {(0.972, 0.968): "0.970 ± 0.003", (1.0, 1.0): "1 ± 0", (123456.0,): "123456"}
    for values, text in spreads.items():
        run = results.Run("x")
        for seed, value in enumerate(values):
            run.record("m", value, method="al", seed=seed)
        assert results.table(results.read(run.save())).endswith(f"| al | {text} |")
    run = filled()
    run.record("time", 0.01234, method="al", data="digits", unit="s")
    assert results.table(results.read(run.save())) == (
        "| data | method | accuracy (%) | time (s) |\n"
        "| --- | --- | ---: | ---: |\n"
        "| digits | bp | 97.4 ± 0.6 |  |\n"
        "| digits | al | 96.3 ± 0.3 | 0.01234 |"
    )


def _contenders():
    run = results.Run("x")
    for contender, value in (("al", 1.0), ("bp", 9.0)):
        for seed in (0, 1):
            extra = {"contender": contender}
            run.record("rate", value + seed, method="m", seed=seed, unit="/s", extra=extra)
    return results.read(run.save())


def test_summaries_and_tables_keep_unlike_things_apart():
    rows = _contenders()
    stats = results.summary(rows)
    assert stats[["contender", "n", "mean"]].values.tolist() == [["al", 2, 1.5], ["bp", 2, 9.5]]
    with pytest.raises(ValueError, match="rows differ in contender"):
        results.table(rows)
    assert "| al | 1.5 ± 0.7 |" in results.table(rows, rows=("contender",))
