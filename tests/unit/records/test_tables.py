"""The tables of results: exact, sorted, one writer at a time, read strictly and by pandas alone."""

import json
import os
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alkit.data import paths
from alkit.records import results, tables
from tests.unit.records.helpers import PARAMETERS, filled, write_notebook

pytestmark = pytest.mark.usefixtures("checkout")

LABELS = ["bp", "2bw", "10/25 Mbit/s", "1", "1e5", "-3", "inf", "nan", "None", "NA", "true", "null"]
LABELS += ["", '"', "[1]", "{", "a,b", 'say "x"', "two\nlines", "a\r\nb\rc", " blank ", "ä"]
LABELS += ["0x1", "1_0"]


def lines(name):
    return (paths.records_dir() / name).read_text(encoding="utf-8").splitlines()


def test_every_kind_of_value_comes_back_as_it_was():
    run = results.Run("x", parameters={"a": [1, "1"], "b": "ä", "c": 1e-5, "d": None})
    numbers = [1, 1.0, -0.0, 0.1 + 0.2, 1e-300, 10**20, True, False]
    for at, value in enumerate([*numbers, *LABELS, [], [1, [2.0, "x"]]]):
        run.record(f"m{at}", value, extra={"line": at})
    for at, label in enumerate(LABELS):
        run.record("label", 1, method=label, data=label, extra={"at": at, "word": label})
    run.record("free", 1, extra={"list": [1, "2"], "flag": True, "word": 7})
    tables.merge([run.save()])
    assert tables.runs()[0]["parameters"] == run.parameters
    rows = [dict(row) for row in tables.values("x")]
    assert {row.pop("run") for row in rows} == {tables.runs()[0]["run"]}
    given = [{n: v for n, v in row.items() if n not in ("notebook", "preset")} for row in run.rows]
    assert json.dumps(rows, sort_keys=True) == json.dumps(given, sort_keys=True)  # types, too
    before = lines("x.csv")
    tables.merge([run.save()])
    assert lines("x.csv") == before


@given(st.text(), st.floats(allow_nan=False, allow_infinity=False))
def test_any_text_and_number_comes_back(text, number):
    for value in (text, number):
        cell = tables._cell("label", value)
        assert tables._value(cell) == value
        assert type(tables._value(cell)) is type(value)


def test_pandas_alone_reads_them():
    """README of the results, as a reader does it."""
    for seeds in ([0, 1], [2, 3]):
        rows = [(method, seed, 90.0 + seed) for method in ("2bw", "al") for seed in seeds]
        tables.merge([filled(values=rows, seeds=seeds, lr=0.1).save()])
    runs = pd.read_csv(paths.records_dir() / "runs.csv")
    given = runs["parameters"].map(json.loads).apply(pd.Series)
    assert list(given["seeds"]) == [[0, 1], [2, 3]]
    frame = pd.read_csv(paths.records_dir() / "02_al.csv").merge(runs, on="run")
    own = frame[(frame["metric"] == "accuracy") & (frame["method"] == "2bw")]
    assert list(own["value"].astype(float)) == [90.0, 91.0, 92.0, 93.0]
    assert set(own["preset"]) == {"cpu"}


def test_the_page_shows_what_works(monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(paths.root())
    (code,) = re.findall(r"```python\n(.*?)```", Path("docs/runs.md").read_text(), re.DOTALL)
    seen = {}
    exec(code, seen)
    assert len(seen["accuracy"]) > 100
    assert seen["parameters"].notna().any(axis=1).all()
    assert seen["curves"].map(type).eq(list).all()
    assert len(seen["curves"])


def test_a_run_takes_the_place_of_the_same_one_and_no_other_line_moves():
    for seed in (2, 0, 10, 1):
        tables.merge([filled(seeds=[seed], lr=None if seed else 0.1).save()])
    assert [run["parameters"]["seeds"] for run in tables.runs()] == [[1], [2], [10], [0]]  # by lr
    before = lines("02_al.csv"), lines("runs.csv")
    changed = [("bp", 0, 50.0), ("al", 0, 60.0)]
    tables.merge([filled(values=changed, seeds=[2], lr=None).save()])
    after = lines("02_al.csv"), lines("runs.csv")
    assert after[0][:5] + after[0][7:] == before[0][:5] + before[0][9:]
    assert after[1][:2] + after[1][3:] == before[1][:2] + before[1][3:]  # 2: its date


def test_a_parameter_that_is_new_counts_with_its_default(checkout):
    """A notebook got a parameter after a run: its table has no second run of the same."""
    write_notebook(checkout / "notebooks")
    old = {"preset": "smoke", "mode": "ok", "seed": 1, "lr": 1e-3, "seeds": [0, 1]}
    tables.merge([filled("10_x", "smoke", **old).save()])
    write_notebook(checkout / "notebooks", PARAMETERS + "size: int = 8\n")
    new = old | {"depth": None, "size": 8}
    assert tables.key("10_x", "smoke", new) in tables.known()
    assert tables.key("10_x", "smoke", new | {"size": 9}) not in tables.known()
    for size in (9, 8):
        tables.merge([filled("10_x", "smoke", **new | {"size": size}).save()])
    assert [run["parameters"]["size"] for run in tables.runs()] == [8, 9]


def _merge(folder, number):
    paths.root = lambda: folder
    for seed in range(4):
        tables.merge([filled(number=number, seed=seed).save()])


def test_writers_at_once_lose_nothing(checkout):
    with ProcessPoolExecutor(4, get_context("spawn")) as pool:
        for done in [pool.submit(_merge, checkout, number) for number in range(4)]:
            done.result()
    assert len(tables.runs()) == 16
    assert len(tables.values("02_al")) == 64
    names = {path.name for path in paths.records_dir().iterdir()}
    assert names == {"runs.csv", "02_al.csv"}


def test_a_failed_merge_leaves_the_tables_as_they_were(monkeypatch, checkout):
    tables.merge([filled(seed=0).save()])
    before = {path: path.read_bytes() for path in paths.records_dir().iterdir()}
    file = filled(seed=1).save()
    (checkout / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match="bad.json is not a record of a run: KeyError"):
        tables.merge([file, checkout / "bad.json"])

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        tables.merge([file])
    assert {path: path.read_bytes() for path in paths.records_dir().iterdir()} == before


def test_a_writer_that_was_killed_between_two_tables_is_made_good(monkeypatch):
    tables.merge([filled(seed=0).save()])
    file, replace = filled(seed=1).save(), os.replace

    def once(*paths):
        replace(*paths)
        monkeypatch.setattr(os, "replace", None)

    monkeypatch.setattr(os, "replace", once)
    with pytest.raises(TypeError):
        tables.merge([file])
    monkeypatch.setattr(os, "replace", replace)
    assert len(results.load()) == 4  # values without a run are nobody's
    tables.merge([file])
    assert len(results.load()) == len(tables.values("02_al")) == 8


def rewritten(row=None, lost=None, **fields):
    """Return a record's bytes in which something else is said, of its first row or of itself."""
    content = json.loads(filled().save().read_text()) | fields
    if row is not None:
        content["rows"][0] |= row
    if lost is not None:
        del content["rows"][0][lost]
    return json.dumps(content).encode()


NO_RECORD = "record.json is not a record of a run: .*"
REFUSED = [
    ({"row": {"value": "abc"}}, NO_RECORD + "accuracy is 'abc': it must be a number"),
    ({"row": {"value": None}}, NO_RECORD + "accuracy is None"),
    ({"row": {"value": None, "unit": ""}}, NO_RECORD + "accuracy is None"),
    ({"row": {"value": [1.0, "x"]}}, NO_RECORD + "it must be a number"),
    ({"row": {"value": {"a": 1}, "unit": ""}}, NO_RECORD + "it must be a number"),
    ({"lost": "value"}, NO_RECORD + "KeyError"),
    ({"lost": "metric"}, NO_RECORD + "KeyError"),
    ({"row": {"metric": None}}, NO_RECORD + "metric is None"),
    ({"row": {"metric": ""}}, NO_RECORD + "metric is ''"),
    ({"row": {"seed": "0"}}, NO_RECORD + "'seed' is '0': give a whole number"),
    ({"row": {"n": 1.5}}, NO_RECORD + "'n' is 1.5: give a whole number"),
    ({"row": {"value": float("nan")}}, NO_RECORD + "accuracy is nan"),
    ({"row": {"commit": "mine", "run": "r0"}}, r"a row has the fields \['commit', 'run'\]"),
    ({"notebook": "../x"}, NO_RECORD + "notebook '../x': use letters"),
    ({"preset": 3}, NO_RECORD + "TypeError"),
    ({"parameters": []}, NO_RECORD + r"parameters is \[\]: it must be {name: value}"),
    ({"rows": 3}, NO_RECORD + "TypeError"),
    (b"{", NO_RECORD + "JSONDecodeError: Expecting property name"),
    (b"[]", NO_RECORD + "TypeError"),
    (b'{"rows": []}', NO_RECORD + "KeyError"),
    (b"\xff", NO_RECORD + "UnicodeDecodeError"),
    (100_000 * b"[", NO_RECORD + "RecursionError"),
]


@pytest.mark.parametrize(("content", "message"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_is_no_record_is_said_in_one_sentence(tmp_path, content, message):
    file = tmp_path / "record.json"
    file.write_bytes(content if isinstance(content, bytes) else rewritten(**content))
    for reader in (results.read, lambda path: tables.merge([path])):
        with pytest.raises(ValueError, match=message) as caught:
            reader(file)
        assert "\n" not in str(caught.value)
    assert not paths.records_dir().exists()


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("97.0", "abc", 2, "Expecting value"),
        ("97.0", "NaN", 2, "accuracy is nan: it must be a number"),
        ("97.0", 100_000 * "[", 2, "maximum recursion depth exceeded"),
        ("accuracy", "", 2, "metric is None"),
        (",360", ",360,1", 2, "it has 10 cells, and the first line 9"),
        (",360", ",many", 2, "'n' is 'many': give a whole number"),
        ("method,", "seed,", 1, "its first line must name the columns"),
        ("bp", "\udcff", 0, "'utf-8' codec can't decode"),
        ("bp", '"b', 5, "unexpected end of data"),
    ],
)
def test_a_damaged_table_names_its_line(old, new, line, said):
    tables.merge([filled().save()])
    file = paths.records_dir() / "02_al.csv"
    text = file.read_text().replace(old, new, 1)
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=f"02_al.csv, line {line}, cannot be read: {said}"):
        results.load("02_al")


def test_the_committed_tables_are_as_they_would_be_written(monkeypatch):
    """Sorted and whole: every run has its parameters, every value its run."""
    monkeypatch.undo()
    runs = tables.runs()
    assert runs == sorted(runs, key=tables._place)
    for run in runs:
        named = run["notebook"], run["preset"], run["parameters"]
        assert run["parameters"]
        assert run["run"] == tables.identity(*named)
    for name in {run["notebook"] for run in runs}:
        order = [run["run"] for run in runs if run["notebook"] == name]
        assert list(dict.fromkeys(row["run"] for row in tables.values(name))) == order
