"""The store of results: what may be recorded, what is read back, and the statistics on it."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch

from alkit.data import paths
from alkit.records import results

RECORDS = paths.records_dir()
ROWS = [("bp", 0, 97.0), ("bp", 1, 97.8), ("al", 0, 96.5), ("al", 1, 96.1)]


@pytest.fixture(autouse=True)
def checkout(tmp_path, monkeypatch):
    """Let everything be written under an empty checkout, and no runner's settings reach a test."""
    monkeypatch.setattr(paths, "root", lambda: tmp_path)
    for name in ("ALKIT_RECORD", "ALKIT_RUN_SLUG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def filled(notebook="02_al", preset="cpu"):
    run = results.Run(notebook, preset, parameters={"lr": 0.1, "cuts": None})
    for method, seed, value in ROWS:
        run.record("accuracy", value, method=method, data="digits", seed=seed, n=360, unit="%")
    return run


def test_a_record_comes_back_as_it_went_in(monkeypatch):
    monkeypatch.setenv("ALKIT_RECORD", "1")
    path = filled().save()
    assert path == paths.records_dir() / "02_al.cpu.json"
    frame = results.load("02_al", "cpu")
    assert list(frame.columns) == list(results.COLUMNS)
    assert list(zip(frame["method"], frame["seed"], frame["value"], strict=True)) == ROWS
    assert set(frame["n"]) == {360}
    assert set(frame["unit"]) == {"%"}
    assert frame["model"].isna().all()
    pd.testing.assert_frame_equal(frame, results.read(path))


def test_a_record_says_how_it_was_made_how_busy_the_machine_was_and_not_by_whom(monkeypatch):
    record = json.loads(filled().save().read_text())
    assert set(record["versions"]) == {"python", "torch", "numpy", "alkit"}
    assert record["versions"]["numpy"] == np.__version__
    assert record["threads"] == torch.get_num_threads()
    assert set(record["machine"]) == {"cores", "processor", "memory_gib", "busy"}
    assert 0 <= record["machine"]["busy"] <= 1
    assert record["machine"]["cores"] == os.cpu_count()
    assert record["machine"]["memory_gib"] > 0
    assert record["parameters"] == {"lr": 0.1, "cuts": None}
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert json.loads(filled().save().read_text())["threads"] == 3
    cores = os.cpu_count()
    monkeypatch.setattr(os, "getloadavg", lambda: (cores / 4, 0, 0))
    run = filled()
    monkeypatch.setattr(os, "getloadavg", lambda: (9 * cores, 0, 0))
    found = results.read(run.save())
    assert results.busy() == 1
    assert len(found)
    assert found.machine.str.endswith(" GiB, 25% busy before").all()


def test_only_a_recorded_run_is_among_the_committed_ones(monkeypatch, checkout):
    assert filled().save() == checkout / "runs" / "records" / "02_al.cpu.json"
    assert results.load().empty
    monkeypatch.setenv("ALKIT_RUN_SLUG", "seed=3")
    path = filled().save()
    assert path == checkout / "runs" / "records" / "02_al.cpu.seed=3.json"
    assert set(results.read(path)["slug"]) == {"seed=3"}


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
    (1.0, {"extra": {"commit": "mine"}}, r"\['commit'\].*names are taken"),
    ("abc", {"unit": "%"}, "loss is 'abc'"),
]


@pytest.mark.parametrize(("value", "words", "said"), REFUSED, ids=str)
def test_what_is_no_plain_finite_value_is_refused(value, words, said):
    with pytest.raises((TypeError, ValueError), match=said):
        results.Run("x").record("loss", value, **words)


def test_names_lead_where_they_are_looked_for_and_not_out_of_their_folder(monkeypatch):
    for arguments in (("../x",), ("x", "a/b"), ("",)):
        with pytest.raises(ValueError, match="use letters"):
            results.Run(*arguments)
    monkeypatch.setenv("ALKIT_RUN_SLUG", "../../x")
    with pytest.raises(ValueError, match="slug"):
        filled().save()
    for path in RECORDS.glob("*.json"):
        head = json.loads(path.read_text())
        wanted = results.record_path(head["notebook"], head["preset"], head.get("slug", ""))
        assert path.name == wanted.name


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
        results.Run("02_al", "cpu").save()
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_load_takes_what_is_asked_for_and_reads_no_other(monkeypatch):
    assert list(results.load().columns) == list(results.COLUMNS)
    monkeypatch.setenv("ALKIT_RECORD", "1")
    for name, preset in (("02_al", "cpu"), ("02_al", "demo"), ("03_x", "cpu")):
        filled(name, preset).save()
    assert len(results.load()) == 12
    assert len(results.load("02_al")) == 8
    assert set(results.load(preset="cpu")["notebook"]) == {"02_al", "03_x"}
    assert set(results.load(preset="cpu")["preset"]) == {"cpu"}
    assert results.load("04").empty
    assert results.load(where=paths.runs_dir()).empty
    (paths.records_dir() / "03_x.cpu.json").write_text("{")
    assert len(results.load("02_al", "cpu")) == 4
    with pytest.raises(ValueError, match="03_x.cpu.json is not a record"):
        results.load(preset="cpu")
    for content in ("[]", '{"rows": []}'):
        (paths.records_dir() / "03_x.cpu.json").write_text(content)
        with pytest.raises(ValueError, match="03_x.cpu.json is not a record"):
            results.load()
    assert results.read(results.Run("x").save()).empty


def test_results_are_read_from_the_outputs_of_a_notebook(monkeypatch, tmp_path):
    shown = []
    display = SimpleNamespace(display=lambda data, raw: shown.append((data, raw)))
    fake = SimpleNamespace(get_ipython=lambda: object(), display=display)
    monkeypatch.setitem(sys.modules, "IPython", fake)
    run = filled()
    run.save()
    run.record("late", 1)
    path = run.save()
    outputs = [nbformat.v4.new_output("display_data", data=data) for data, raw in shown if raw]
    assert shown[0][0]["text/plain"] == "4 values of 02_al, preset cpu"
    cell = nbformat.v4.new_code_cell("results.save()", outputs=outputs)
    words = nbformat.v4.new_markdown_cell("words")
    nbformat.write(nbformat.v4.new_notebook(cells=[words, cell]), tmp_path / "done.ipynb")
    pd.testing.assert_frame_equal(results.read(tmp_path / "done.ipynb"), results.read(path))


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
    monkeypatch.setenv("ALKIT_RECORD", "1")
    filled("03").save()
    assert commit() == head
    (checkout / "new.py").touch()
    assert commit() == head + "+"
    monkeypatch.setenv("PATH", str(checkout))
    assert commit() == "unknown"


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


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"value": "abc"}, "accuracy is 'abc': it must be a number"),
        ({"value": None}, "accuracy is None"),
        ({"value": None, "unit": ""}, "accuracy is None"),
        ({"value": [1.0, "x"]}, "it must be a number"),
        ({"value": {"a": 1}, "unit": ""}, "it must be a number"),
        ("value", "KeyError"),
        ("metric", "KeyError"),
        ({"metric": None}, "metric is None"),
        ({"metric": ""}, "metric is ''"),
        ({"seed": "0"}, "'seed' is '0': give a whole number"),
        ({"n": 1.5}, "'n' is 1.5: give a whole number"),
    ],
)
def test_a_record_with_a_value_that_is_none_names_its_file(tmp_path, change, text):
    run = results.Run("x")
    run.record("accuracy", 97.2, method="al", seed=0, unit="%")
    content = json.loads(run.save().read_text())
    row = content["rows"][0]
    row.pop(change) if isinstance(change, str) else row.update(change)
    (tmp_path / "x.smoke.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="x.smoke.json is not a record") as caught:
        results.read(tmp_path / "x.smoke.json")
    assert text in str(caught.value)


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
