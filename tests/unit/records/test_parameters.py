"""What a notebook takes: its parameters cell, its presets, and what is refused before a run."""

import nbformat
import pytest

from alkit.data import paths
from alkit.records import parameters, runs
from alkit.records.parameters import Parameter, ParameterError
from alkit.records.strict import Unreadable
from tests.unit.records.helpers import write_notebook, write_preset


def test_parameters_are_read_with_types_and_comments(notebook):
    known = parameters.parameters(notebook)
    assert list(known) == ["preset", "mode", "seed", "lr", "seeds", "depth"]
    assert known["lr"] == Parameter("lr", "float", 1e-3, "of Adam")
    assert known["seeds"] == Parameter("seeds", "list[int]", [0, 1], "runs")
    assert known["depth"] == Parameter("depth", "int | None", None, "")
    assert parameters.parameters("10_x") == known


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a: int = 1\nb = 2", "line 2 .* must read `name: type = literal`"),
        ("a: int", "line 1 .* must read"),
        ("a: int = 1\nprint(a)", "line 2 .* must read"),
        ("a: int = 1\nb: int = a + 1", "line 2 .* is no literal"),
        ("a: int = min(1, 2)", "line 1 .* is no literal"),
        ("a: dict = {}", "line 1 .* has the type dict"),
        ("a: None = None", "line 1 .* has the type None"),
        ("a: int = 1.5", "line 1 .* a must be int, not 1.5"),
        ("a: int = 1\na: int = 2", "line 2 .* a second time"),
        ("a: int = 1\nb: int = ", "line 2 .* no Python"),
    ],
)
def test_a_bad_parameters_cell_is_named_with_its_line(tmp_path, source, message):
    path = write_notebook(tmp_path, source)
    with pytest.raises(ParameterError, match="10_x.ipynb: " + message):
        parameters.parameters(path)


def test_a_notebook_that_is_not_there_or_has_not_one_parameters_cell(notebook):
    with pytest.raises(ParameterError, match="no notebook 10_y, did you mean '10_x'"):
        parameters.parameters("10_y")
    content = nbformat.read(notebook, as_version=4)
    for tagged, count in (((1, 3), 2), ((), 0)):
        for at, cell in enumerate(content.cells):
            cell.metadata["tags"] = ["parameters"] * (at in tagged)
        nbformat.write(content, notebook)
        said = f"10_x.ipynb has {count} cells tagged 'parameters'"
        with pytest.raises(ValueError, match=said):
            parameters.parameters(notebook)


def known(kind, default=None):
    return {"v": Parameter("v", kind, default, "")}


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        ("int", 3, 3),
        ("float", 3, 3.0),
        ("float", 0.5, 0.5),
        ("bool", True, True),
        ("str", "a", "a"),
        ("list[int]", (1, 2), [1, 2]),
        ("list[float]", [1, 0.5], [1.0, 0.5]),
        ("list[str]", [], []),
        ("int | None", None, None),
        ("None | list[str]", ["a"], ["a"]),
        ("int | str", "a", "a"),
    ],
)
def test_a_fitting_value_is_taken_in_its_type(kind, value, result):
    checked = parameters.check(known(kind), {"v": value})["v"]
    assert checked == result
    assert type(checked) is type(result)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("float", "1e-3", r"float, not '1e-3' \(str\): YAML .* write 1.0e-3"),
        ("float", "5E4", r"write 5.0e\+4"),
        ("list[float]", [0.1, "2e-5"], "write 2.0e-5"),
        ("float | None", "1.5e3", r"write 1.5e\+3"),
        ("float", "fast", "a value of the type float"),
        ("float", True, r"float, not True \(bool\)"),
        ("int", True, r"int, not True \(bool\)"),
        ("int", 1.0, r"int, not 1.0 \(float\)"),
        ("int", None, "int, not None"),
        ("bool", 1, "write True or False"),
        ("bool", "true", "write True or False"),
        ("str", 10, 'write "10", with the quotes'),
        ("list[int]", 1, r"write a list, as in \[0, 1\]"),
        ("list[str]", "a", r"write a list, as in \['a', 'b'\]"),
        ("list[int]", [1, True], r"list\[int\], not \[1, True\]"),
        ("list[int]", [[1]], r"list\[int\]"),
    ],
)
def test_another_type_is_refused_with_what_to_do(kind, value, message):
    with pytest.raises(ParameterError, match="file.yaml: v must be .*" + message):
        parameters.check(known(kind), {"v": value}, "file.yaml")
    both = known("int") | {"epochs": Parameter("epochs", "int", 1, "")}
    nearest = r"no parameter 'epoch', did you mean 'epochs'\? \(allowed: v, epochs\)"
    with pytest.raises(ParameterError, match=nearest):
        parameters.check(both, {"epoch": 3})


def test_presets_are_read_from_beside_the_notebook_and_a_missing_one_names_those(notebook):
    write_preset(notebook, 'seed: 10\nlr: 2\nseeds: [0, -7]\nmode: "010"\n')
    write_preset(notebook, "", "empty")
    assert parameters.preset_values(notebook, "smoke") == {}
    read = {"seed": 10, "lr": 2.0, "seeds": [0, -7], "mode": "010"}
    assert parameters.preset_values(notebook, "cpu") == read
    assert parameters.preset_values(notebook, "empty") == {}
    message = r"no preset 'cpus', did you mean 'cpu'\? \(there is: smoke, cpu, empty\)"
    with pytest.raises(ParameterError, match=message):
        parameters.preset_values(notebook, "cpus")
    (notebook.parent / "params" / "10_x.sub").mkdir()
    write_preset(notebook, "lr: 2\n", "sub/cpu")
    with pytest.raises(ParameterError, match="no preset 'sub/cpu'"):
        parameters.preset_values(notebook, "sub/cpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lrr: 1.0", "10_x.cpu.yaml: no parameter 'lrr', did you mean 'lr'"),
        ("lr: 1e-3", "10_x.cpu.yaml: lr must be float, not '1e-3' .* write 1.0e-3"),
        ("- lr", "10_x.cpu.yaml cannot be read: it must hold lines"),
        ("lr: [", "10_x.cpu.yaml cannot be read"),
        ("seed: 010", "10_x.cpu.yaml cannot be read: 010 is not the same number .*: write 10, or"),
        ("seed: 1:30", "cannot be read: 1:30 is not the same number .* write seconds"),
        ("lr: -01:30.5", "cannot be read: -01:30.5 is not the same number"),
        ("seed: 1\nlr: 2.0\nseed: 2", "cannot be read: 'seed' is there twice: keep one of them"),
        ("seeds: [{a: 1, a: 2}]", "cannot be read: 'a' is there twice"),
        (b"mode: \xff\xfe", "10_x.cpu.yaml cannot be read: it is not UTF-8"),
        ("seeds: " + 100_000 * "[", "10_x.cpu.yaml cannot be read: it is nested too deeply"),
        ("mode: !!python/name:os.system", "cannot be read"),
        ("&a {seeds: *a}", "cannot be read"),
    ],
)
def test_a_bad_preset_is_refused_in_one_sentence(notebook, text, message):
    write_preset(notebook, text)
    with pytest.raises(Unreadable, match=message) as caught:
        runs.plan(notebook, "cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "10_x.ipynb is no notebook"),
        (b"\xff", "is no notebook: .*it is not UTF-8"),
        (100_000 * b"[", "is no notebook: .*nested too deeply"),
        (b'{"cells": [], "cells": []}', "is no notebook: .*'cells' is there twice"),
    ],
)
def test_what_is_no_notebook_is_said(notebook, content, message):
    notebook.write_bytes(content)
    with pytest.raises(ParameterError, match=message):
        parameters.parameters(notebook)


def test_a_plan_layers_defaults_preset_and_overrides(notebook):
    write_preset(notebook, "lr: 2\nseed: 4\n")
    job = runs.plan(notebook, "cpu", {"seed": 7, "mode": "raise"})
    assert job.values == {"preset": "cpu", "lr": 2.0, "seed": 7, "mode": "raise"}
    assert job.parameters == job.values | {"seeds": [0, 1], "depth": None}
    assert job.folder == paths.runs_dir() / "10_x.cpu.mode=raise_seed=7"
    assert (job.target.name, job.partial.name) == ("10_x.ipynb", "10_x.partial.ipynb")
    # what is given and is the preset's is no change
    assert runs.plan(notebook, "cpu", {"seed": 4, "depth": None}).name == "cpu"
    with pytest.raises(ParameterError, match="10_x.ipynb: no parameter 'sed'"):
        runs.plan(notebook, "cpu", {"sed": 7})
    with pytest.raises(ParameterError, match="time limit is 0 s"):
        runs.plan(notebook, timeout_s=0)


def test_slugs_are_safe_and_tell_values_apart(notebook):
    words = ["a", "b", "a b", "a/b", "../b", "1", "None", "a=b", "x" * 300, "x" * 301, "ä"]
    points = [{}, {"mode": "a", "seed": 1}, {"lr": 0.1}, {"lr": 1e-05}, {"lr": -1.0}]
    points += [{"seeds": [0, 2]}, {"seeds": [0, -1]}, {"seeds": []}, {"depth": 1}, {"seed": -1}]
    points += [{"mode": word} for word in [*words, "a_seed=1"]]
    jobs = [runs.plan(notebook, overrides=point) for point in points]
    names = [job.name for job in jobs]
    assert len(set(names)) == len(points)
    assert all("/" not in name and " " not in name and len(name) < 110 for name in names)
    assert names[1] == "smoke.mode=a_seed=1"
    assert runs.plan(notebook, overrides={"seed": 1, "mode": "a"}).name == names[1]
    assert len({job.run for job in jobs}) == len(points)
