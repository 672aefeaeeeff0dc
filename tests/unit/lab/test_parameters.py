"""What a notebook takes: its parameters cell, its presets, and what is refused before a run."""

import pytest

from alkit.lab import parameters
from alkit.lab.setup import take_preset
from tests.unit.lab.helpers import write_preset

TAKEN = [(1, 3, 3), (0.5, 3, 3.0), (False, True, True), (None, "a", "a"), (0.5, None, None)]
WRONG = [(0.5, True), (1, 1.0), (True, 1), (True, "false"), ("a", 10), ([1], 1), (["b"], "a")]


def test_a_value_is_taken_in_its_type_or_refused():
    for default, value, expected in TAKEN:
        found = parameters.check({"v": default}, {"v": value}, "file.yaml")["v"]
        assert (found, type(found)) == (expected, type(expected))
    for default, value in WRONG:
        with pytest.raises(ValueError, match="file.yaml: v must be .*, not .*"):
            parameters.check({"v": default}, {"v": value}, "file.yaml")


def test_a_preset_builds_no_object_and_has_each_name_once(notebook):
    write_preset(notebook, "mode: !!python/name:os.system")
    with pytest.raises(ValueError, match="could not determine a constructor"):
        parameters.preset_values(notebook, "cpu")
    write_preset(notebook, "seed: 1\nlr: 2.0\nseed: 2")
    with pytest.raises(ValueError, match="10_x.cpu.yaml must hold lines .* each name once"):
        parameters.preset_values(notebook, "cpu")


NOTEBOOK = "04_pipeline"
DEFAULTS = parameters.parameters(NOTEBOOK)


def taken(preset: str, **more: object) -> dict[str, object]:
    names = DEFAULTS | {"preset": preset} | more
    take_preset(names, NOTEBOOK)
    return {name: names[name] for name in DEFAULTS}


def test_in_a_lab_the_presets_values_replace_the_defaults_and_in_batch_those_given_stay(capsys):
    changed = parameters.preset_values(NOTEBOOK, "teach")
    assert changed
    found = taken("teach", In=["", "epochs: int = 1"])
    assert found == DEFAULTS | {"preset": "teach"} | changed
    assert capsys.readouterr().out.startswith("preset teach: ")
    assert taken("smoke") == DEFAULTS
    by_hand = ["", "epochs: int = 1", "# Parameters\nepochs = 3\n"]  # papermill's own cell
    assert taken("teach", epochs=3, In=by_hand)["epochs"] == 3
