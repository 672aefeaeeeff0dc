"""What a notebook takes: its parameters cell, its presets, and what is refused before a run."""

import re

import pytest

from alkit.lab import parameters
from tests.unit.lab.helpers import write_notebook, write_preset


def test_parameters_are_read_with_their_defaults(notebook):
    known = parameters.parameters(notebook)
    assert list(known) == ["preset", "mode", "seed", "lr", "seeds", "depth"]
    assert (known["lr"], known["seeds"], known["depth"]) == (1e-3, [0, 1], None)
    assert parameters.parameters("10_x") == parameters.parameters("10") == known


@pytest.mark.parametrize("line", ["a: int", "a = 2 * 3"])
def test_a_bad_parameters_cell_is_said(tmp_path, line):
    path = write_notebook(tmp_path, f"c: int = 1\n{line}")
    with pytest.raises(ValueError, match=f"`{re.escape(line)}` is no `name = literal`"):
        parameters.parameters(path)


TAKEN = [(1, 3, 3), (0.5, 3, 3.0), (False, True, True), (None, "a", "a"), (0.5, None, None)]
WRONG = [(0.5, True), (1, 1.0), (True, 1), (True, "false"), ("a", 10), ([1], 1), (["b"], "a")]


def test_a_value_is_taken_in_its_type_or_refused():
    for default, value, expected in TAKEN:
        found = parameters.check({"v": default}, {"v": value}, "file.yaml")["v"]
        assert (found, type(found)) == (expected, type(expected))
    for default, value in WRONG:
        with pytest.raises(ValueError, match="file.yaml: v must be .*, not .*"):
            parameters.check({"v": default}, {"v": value}, "file.yaml")


def test_presets_are_read_from_beside_the_notebook(notebook):
    write_preset(notebook, 'seed: 10\nlr: 2\nseeds: [0, -7]\nmode: "010"\n')
    write_preset(notebook, "", "empty")
    assert parameters.preset_values(notebook, "smoke") == {}
    read = {"seed": 10, "lr": 2.0, "seeds": [0, -7], "mode": "010"}
    assert parameters.preset_values(notebook, "cpu") == read
    assert parameters.preset_values(notebook, "empty") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lrr: 1.0", "10_x.cpu.yaml: no parameter 'lrr' .did you mean 'lr'"),
        ("lr: 1e-3", "10_x.cpu.yaml: lr must be float, not '1e-3' .* write 1.0e-3"),
        ("seed: 1\nlr: 2.0\nseed: 2", "10_x.cpu.yaml must hold lines .* each name once"),
    ],
)
def test_a_bad_preset_is_refused(notebook, text, message):
    write_preset(notebook, text)
    with pytest.raises(ValueError, match=message):
        parameters.preset_values(notebook, "cpu")


def test_a_preset_builds_no_object(notebook):
    write_preset(notebook, "mode: !!python/name:os.system")
    with pytest.raises(ValueError, match="could not determine a constructor"):
        parameters.preset_values(notebook, "cpu")
