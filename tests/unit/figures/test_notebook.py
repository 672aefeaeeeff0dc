"""A preset's name in a notebook's first cell: what its parameters become, and when they stay."""

import pytest

from alkit.figures.notebook import take_preset
from alkit.records.parameters import ParameterError, defaults, preset_values
from alkit.records.recording import GIVEN

NOTEBOOK = "07_pipeline_by_hand"


def taken(preset: str, **more: object) -> dict[str, object]:
    names = defaults(NOTEBOOK) | {"preset": preset} | more
    take_preset(names, NOTEBOOK)
    return {name: names[name] for name in defaults(NOTEBOOK)}


def test_in_a_lab_the_presets_values_replace_the_defaults(monkeypatch, capsys):
    monkeypatch.delenv(GIVEN, raising=False)
    changed = preset_values(NOTEBOOK, "teach")
    assert changed
    found = taken("teach", In=["", "epochs: int = 1"])
    assert found == defaults(NOTEBOOK) | {"preset": "teach"} | changed
    assert capsys.readouterr().out.startswith("preset teach: ")
    assert taken("smoke") == defaults(NOTEBOOK)
    with pytest.raises(ParameterError, match="no preset 'tech', did you mean 'teach'"):
        taken("tech")


def test_a_run_in_batch_keeps_the_values_that_it_was_given(monkeypatch):
    monkeypatch.delenv(GIVEN, raising=False)
    by_hand = ["", "epochs: int = 1", "# Parameters\nepochs = 3\n"]  # papermill's own cell
    assert taken("teach", epochs=3, In=by_hand)["epochs"] == 3
    monkeypatch.setenv(GIVEN, "{}")
    assert taken("teach", epochs=3)["epochs"] == 3
