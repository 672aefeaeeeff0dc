"""Results: what may be recorded, and what the tables keep of it."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from alkit.lab import results
from tests.unit.lab.helpers import ROWS, filled

pytestmark = pytest.mark.usefixtures("checkout")


def recorded(run):
    """Save a run and put it into the tables."""
    results.merge([run.save()])
    return results.load(run.notebook, run.preset)


def test_a_record_comes_back_as_it_went_in():
    run = filled(lr=0.1, cuts=None)
    run.save()
    assert results.load().empty  # of a run alone, nothing is committed
    assert results.load().columns.tolist() == [*results.FIRST, *results.RUN[3:]]
    frame = recorded(run)
    assert list(zip(frame["method"], frame["seed"], frame["value"], strict=True)) == ROWS
    assert set(frame["n"]) == {360}
    assert frame["model"].isna().all()
    assert set(frame["parameters"]) == {'{"cuts": null, "lr": 0.1}'}


def test_a_notebook_knows_what_its_names_hold_now(notebook, monkeypatch):
    assert results.Run("10_x").parameters == {}  # a script
    main = sys.modules["__main__"]
    held = {"preset": "smoke", "mode": "ok", "seed": 9, "lr": 0.5, "seeds": [1], "depth": None}
    for name, value in {"get_ipython": None, "other": 1, **held}.items():
        monkeypatch.setattr(main, name, value, raising=False)
    run = results.Run("10_x")
    assert run.parameters == held
    monkeypatch.setattr(main, "seed", object(), raising=False)  # a cell took the name
    with pytest.raises(ValueError, match="parameters of 10_x, as they are now: seed must be int"):
        results.Run("10_x")


REFUSED = [torch.ones(2), {1}, np.nan, np.float32("-inf"), [np.nan]]


@pytest.mark.parametrize("value", REFUSED, ids=str)
def test_what_is_no_plain_finite_value_is_refused(value):
    with pytest.raises((AttributeError, RuntimeError, ValueError)):
        results.Run("x").record("loss", value)


def test_a_cell_run_twice_counts_once():
    run = results.Run("x")
    run.record("loss", 1.0, method="al", extra={"epoch": 1})
    run.record("loss", 2.0, method="al", extra={"epoch": 2})
    run.record("loss", 3.0, method="al", extra={"epoch": 1})
    results.merge([run.save()])
    rows = [(row["value"], row["epoch"], row["unit"]) for row in results.rows_of("x")]
    assert rows == [(3.0, 1, None), (2.0, 2, None)]


# ---- tables


@given(st.text(min_size=1), st.floats(allow_nan=False, allow_infinity=False))
def test_any_text_and_number_comes_back(text, number):
    for value in (text, number):
        cell = results._text("label", value)
        assert results._value(cell) == value
        assert type(results._value(cell)) is type(value)


def test_a_run_takes_the_place_of_the_same_one():
    for seed in (2, 0):
        results.merge([filled(seeds=[seed]).save()])
    changed = [("bp", 0, 50.0), ("al", 0, 60.0)]
    results.merge([filled(values=changed, seeds=[2]).save()])
    found = [row["value"] for row in results.rows_of("02_al")]
    assert found == [97.0, 97.8, 96.5, 96.1, 50.0, 60.0]
    assert len(results.rows_of()) == 2


def test_a_writer_that_was_killed_between_two_tables_is_made_good(monkeypatch):
    results.merge([filled(seed=0).save()])
    file, replace = filled(seed=1).save(), os.replace

    def once(*paths):
        replace(*paths)
        monkeypatch.setattr(os, "replace", None)

    monkeypatch.setattr(os, "replace", once)
    with pytest.raises(TypeError):
        results.merge([file])
    monkeypatch.setattr(os, "replace", replace)
    assert len(results.load()) == 4  # values without a run are nobody's
    results.merge([file])
    assert len(results.load()) == len(results.rows_of("02_al")) == 8


def test_the_committed_tables_are_whole(monkeypatch):
    """Every run has its parameters, every value its run."""
    monkeypatch.undo()
    runs = results.rows_of()
    for run in runs:
        assert run["parameters"]
        assert run["run"] == results.identity(run)
    for name in {run["notebook"] for run in runs}:
        own = {run["run"] for run in runs if run["notebook"] == name}
        assert {row["run"] for row in results.rows_of(name)} == own


def git(folder, *words):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(done, capture_output=True, text=True, check=True).stdout.strip()


def test_the_commit_tells_a_changed_source_from_a_new_record(checkout):
    def commit():
        return json.loads(filled().save().read_text())["commit"]

    (checkout / ".gitignore").write_text("/runs/\n")
    git(checkout, "init", "-q")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "first")
    head = git(checkout, "rev-parse", "--short=8", "HEAD")
    assert commit() == head
    recorded(filled("03"))
    assert commit() == head
    (checkout / "new.py").touch()
    assert commit() == head + "+"
