"""Every `paper` preset starts on the simulated device: its notebook's cells, at small width."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import pytest
import yaml

from tests.sim.device import operators, start

COUNT = start()
if COUNT < 2:
    pytest.skip("no C++ compiler: the simulated device has no generators", allow_module_level=True)
NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
# what is made small: data that are part of the package, few samples, narrow layers, few steps
IMAGES = {"data": "digits", "epochs": 1, "batch_size": 8, "width": 0.03125, "train_size": 16}
IMAGES |= {"augment": "weak"}  # the strong one changes colours
TEXTS = {"data": "pydocs", "epochs": 1, "batch_size": 8, "max_len": 8, "train_size": 16}
TEXTS |= {"vectors": "", "width": 12, "hidden": 4, "blocks": 2}
DELAYED = {"data": "digits", "epochs": 1, "batch_size": 64, "width": 2, "train_size": 128}
DELAYED |= {"depth": 8, "lrs": [0.01], "seeds": [0], "modules": [2]}
DELAYED |= {"words_data": "pydocs", "words_width": 8, "words_context": 8, "words_steps": 2}
DELAYED |= {"words_lrs": [1e-3], "words_seeds": [0]}
SMALL = {
    "05_vgg.paper": IMAGES,
    "06_resnet.paper": IMAGES,
    "07_lstm.paper": TEXTS,
    "08_transformer.paper": {n: v for n, v in TEXTS.items() if n != "hidden"} | {"ffn": 8},
    "23_delay.paper": DELAYED,
    "23_delay.paper110": DELAYED,
}
TRAINED = ("study.train_case(case", "word_losses(method, lr, seed) for")  # in the last cell run


def test_no_preset_is_forgotten():
    found = {path.stem for path in (NOTEBOOKS / "params").glob("*.paper*.yaml")}
    assert found == set(SMALL)


@pytest.mark.parametrize("preset", SMALL)
def test_a_paper_preset_starts(preset, tmp_path, monkeypatch):
    matplotlib.use("Agg")
    monkeypatch.chdir(NOTEBOOKS)
    operators.clear()
    monkeypatch.setattr(sys, "path", [str(NOTEBOOKS), *sys.path])
    of_checkpoints = SimpleNamespace(root=lambda: tmp_path)
    monkeypatch.setattr("studies.al.family_study.paths", of_checkpoints)
    given = yaml.safe_load((NOTEBOOKS / f"params/{preset}.yaml").read_text())
    assert given["device"] == "auto"
    cells = json.loads((NOTEBOOKS / f"{preset.split('.')[0]}.ipynb").read_text())["cells"]
    space: dict = {"display": print}
    for cell in cells:
        code = "".join(cell["source"])
        if cell["cell_type"] != "code":
            continue
        exec(compile(code, preset, "exec"), space)
        if "parameters" in cell["metadata"].get("tags", []):
            space |= given | SMALL[preset]
        if any(call in code for call in TRAINED):
            break
    assert sum(operators[name] for name in operators if "backward" in name) > 20
