"""A preset's name in a notebook's first cell: what its parameters become, and when they stay."""

from alkit.lab.parameters import parameters, preset_values
from alkit.lab.setup import take_preset

NOTEBOOK = "04_pipeline"
DEFAULTS = parameters(NOTEBOOK)


def taken(preset: str, **more: object) -> dict[str, object]:
    names = DEFAULTS | {"preset": preset} | more
    take_preset(names, NOTEBOOK)
    return {name: names[name] for name in DEFAULTS}


def test_in_a_lab_the_presets_values_replace_the_defaults(capsys):
    changed = preset_values(NOTEBOOK, "teach")
    assert changed
    found = taken("teach", In=["", "epochs: int = 1"])
    assert found == DEFAULTS | {"preset": "teach"} | changed
    assert capsys.readouterr().out.startswith("preset teach: ")
    assert taken("smoke") == DEFAULTS


def test_a_run_in_batch_keeps_the_values_that_it_was_given():
    by_hand = ["", "epochs: int = 1", "# Parameters\nepochs = 3\n"]  # papermill's own cell
    assert taken("teach", epochs=3, In=by_hand)["epochs"] == 3
