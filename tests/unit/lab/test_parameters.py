"""What a notebook takes: its parameters cell, its presets, and what is refused before a run."""

import pytest
import yaml

from alkit.lab import parameters
from alkit.lab.parameters import Parameter
from tests.unit.lab.helpers import write_notebook, write_preset


def test_parameters_are_read_with_types(notebook):
    known = parameters.parameters(notebook)
    assert list(known) == ["preset", "mode", "seed", "lr", "seeds", "depth"]
    assert known["lr"] == Parameter("float", 1e-3)
    assert known["seeds"] == Parameter("list[int]", [0, 1])
    assert known["depth"] == Parameter("int | None", None)
    assert parameters.parameters("10_x") == parameters.parameters("10") == known


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a: int = 1\nb = 2", "`b = 2` is no `name: type = literal`"),
        ("a: int", "`a: int` is no"),
        ("a: thing = 1", "thing, not 1"),
        ("a: int = 1.5", "int, not 1.5"),
    ],
)
def test_a_bad_parameters_cell_is_said(tmp_path, source, message):
    path = write_notebook(tmp_path, source)
    with pytest.raises(ValueError, match=message):
        parameters.parameters(path)


def test_a_notebook_that_is_none(notebook):
    with pytest.raises(ValueError, match="no notebook 10_y .did you mean '10_x'"):
        parameters.parameters("10_y")


def known(kind):
    return {"v": Parameter(kind, None), "epochs": Parameter("int", 1)}


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        ("int", 3, 3),
        ("float", 3, 3.0),
        ("bool", True, True),
        ("str", "a", "a"),
        ("list[float]", [1, 0.5], [1.0, 0.5]),
        ("list[str]", [], []),
        ("int | None", None, None),
        ("None | list[str]", ["a"], ["a"]),
        ("int | str", "a", "a"),
    ],
)
def test_a_fitting_value_is_taken_in_its_type(kind, value, result):
    checked = parameters.check(known(kind), {"v": value}, "file.yaml")["v"]
    assert checked == result
    assert type(checked) is type(result)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("float", True),
        ("float | None", "fast"),
        ("int", True),
        ("int", 1.0),
        ("int", None),
        ("bool", 1),
        ("str", 10),
        ("list[int]", 1),
        ("list[str]", "a"),
        ("list[int]", [1, True]),
        ("list[int]", [[1]]),
    ],
)
def test_another_type_is_refused(kind, value):
    with pytest.raises(ValueError, match="file.yaml: v must be .*, not .*"):
        parameters.check(known(kind), {"v": value}, "file.yaml")
    near = r"no parameter 'epoch' \(did you mean 'epochs'\?\): there are v, epochs"
    with pytest.raises(ValueError, match=near):
        parameters.check(known(kind), {"epoch": 3}, "file.yaml")


def test_presets_are_read_from_beside_the_notebook_and_a_missing_one_names_those(notebook):
    write_preset(notebook, 'seed: 10\nlr: 2\nseeds: [0, -7]\nmode: "010"\n')
    write_preset(notebook, "", "empty")
    assert parameters.preset_values(notebook, "smoke") == {}
    read = {"seed": 10, "lr": 2.0, "seeds": [0, -7], "mode": "010"}
    assert parameters.preset_values(notebook, "cpu") == read
    assert parameters.preset_values(notebook, "empty") == {}
    message = r"no preset 'cpus' \(did you mean 'cpu'\?\): there is smoke, cpu, empty"
    with pytest.raises(ValueError, match=message):
        parameters.preset_values(notebook, "cpus")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lrr: 1.0", "10_x.cpu.yaml: no parameter 'lrr' .did you mean 'lr'"),
        ("lr: 1e-3", "10_x.cpu.yaml: lr must be float, not '1e-3' .* write 1.0e-3"),
        ("- lr", "10_x.cpu.yaml must hold lines of `name: value`"),
        ("seed: 1\nlr: 2.0\nseed: 2", "10_x.cpu.yaml must hold lines .* each name once"),
    ],
)
def test_a_bad_preset_is_refused_in_one_sentence(notebook, text, message):
    write_preset(notebook, text)
    with pytest.raises(ValueError, match=message) as caught:
        parameters.preset_values(notebook, "cpu")
    assert "\n" not in str(caught.value)


def test_a_preset_builds_no_object(notebook):
    write_preset(notebook, "mode: !!python/name:os.system")
    with pytest.raises(yaml.YAMLError, match="could not determine a constructor"):
        parameters.preset_values(notebook, "cpu")
