"""A light install: every method trains on tensors, and whatever else is asked names its extra."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]

# found is what the path holds, but for the packages named on the command line
HIDE = """
import json, sys
from importlib.machinery import PathFinder

class Light(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in HIDDEN
        return None if hidden else super().find_spec(name, path, target)

HIDDEN = set(json.loads(sys.argv[1]))
sys.meta_path[:] = [Light if finder is PathFinder else finder for finder in sys.meta_path]
"""

TRAIN = """
import torch
from torch import nn
import alkit
from alkit.models.vit import ViTSizes

def blocks():
    return [nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 3)]

def vit():
    sizes = ViTSizes(layers=2, width=8, heads=2, mlp=8, patch=8, image=16, channels=1, classes=3)
    return alkit.elastic.vit_classifier(sizes)

torch.manual_seed(0)
y = torch.arange(16) % 3
rows, images = torch.randn(16, 6), torch.randn(16, 1, 16, 16)
given = {
    "bp": (blocks(), rows),
    "al_pipeline": (blocks(), rows),
    "pipedream": (blocks(), rows),
    "split": (blocks(), rows),
    "elastic": (vit(), images),
    "dtp": (alkit.dtp.network("tiny", channels=1, classes=3), images),
}
for method, (model, x) in given.items():
    record = alkit.fit(
        model, (x, y), (x, y), (x, y), method=method, batch_size=8, progress=False
    )
    print(method, bool(record.losses.isfinite().all()))
"""

# what needs an extra, and which one
ASKS = {
    "import alkit.figures.viz": "notebooks",
    "import alkit.figures.show": "notebooks",
    "from alkit.records.comparisons import of_seeds; of_seeds([1.0, 2.0])": "notebooks",
    "import alkit.models.imagenet": "vision",
    "import alkit; alkit.datasets.load('digits')": "vision",
    "from alkit.data.decode import decode; decode('a.png', b'', 'a.zip', 8)": "vision",
    "from alkit.data.images import _matlab, Path; _matlab(Path('README.md'))": "vision",
    "import alkit; alkit.datasets.load('pydocs')": "text",
    "from alkit.data.text import Vocabulary; Vocabulary(['a b'])": "text",
    "import alkit.split.certs": "split",
    "import alkit.split.program": "split",
}
ASK = """
for code in json.loads(sys.argv[2]):
    try:
        exec(code, {})
    except (ImportError, FileNotFoundError) as error:
        print(json.dumps(str(error)))
    else:
        print(json.dumps("nothing is missing"))
"""


def _pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _hidden() -> list[str]:
    """Return the packages of this environment that the core install would not bring."""
    waiting = [Requirement(line) for line in _pyproject()["dependencies"]]
    asked, core = set(), {"alkit"}
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        core.add(name)
        for extra in {"", *wanted.extras}:
            if (name, extra) in asked:
                continue
            asked.add((name, extra))
            needs = [Requirement(line) for line in distribution(name).requires or ()]
            waiting += [r for r in needs if not r.marker or r.marker.evaluate({"extra": extra})]
    owners = packages_distributions().items()
    return sorted(
        package for package, own in owners if not core & {canonicalize_name(o) for o in own}
    )


def _light(code: str, *arguments: object) -> list[str]:
    """Run code in a process that finds the core alone; return the lines that it prints."""
    words = [json.dumps(argument) for argument in (_hidden(), *arguments)]
    done = subprocess.run(
        [sys.executable, "-c", HIDE + code, *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_core_is_small():
    """What only some users need is hidden from the tests below."""
    assert set(_hidden()) > set(
        "torchvision PIL torchtext tokenizers scipy sklearn matplotlib seaborn papermill nbclient"
        " nbformat ipywidgets IPython grpc cryptography transformers pydantic requests".split()
    )


def test_every_method_trains_with_the_core_alone():
    methods = ("bp", "al_pipeline", "pipedream", "split", "elastic", "dtp")
    assert _light(TRAIN) == [f"{method} True" for method in methods]


def test_the_command_needs_no_extra():
    assert _light("from alkit.records.cli import main\nmain(['list'])")


def test_what_needs_an_extra_names_it():
    said = dict(zip(ASKS, map(json.loads, _light(ASK, list(ASKS))), strict=True))
    wrong = {code: text for code, text in said.items() if f"alkit[{ASKS[code]}]" not in text}
    assert not wrong


def test_all_is_every_extra_but_those_of_this_checkout():
    """The tests and the site are made here alone; what is installed elsewhere has neither."""
    extras = _pyproject()["optional-dependencies"]
    (one,) = extras["all"]
    assert Requirement(one).name == "alkit"
    assert Requirement(one).extras == set(extras) - {"all", "test", "site"}


@pytest.mark.parametrize("extra", ["notebooks", "vision", "text", "split"])
def test_an_extra_repeats_nothing_of_the_core(extra):
    core = {Requirement(line).name for line in _pyproject()["dependencies"]}
    own = {Requirement(line).name for line in _pyproject()["optional-dependencies"][extra]}
    assert own
    assert not own & core
