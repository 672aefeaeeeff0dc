"""Every dashboard: sharp where a point has two pixels, and a still for readers without a kernel."""

import base64
import re
import struct
from collections.abc import Callable
from functools import cache

import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from torch import nn

from alkit.al.backprop import BPModel
from alkit.data.parts import DataSet, Part
from alkit.data.text import vocabulary_of
from alkit.split.planner import Workload
from alkit.split.profile import Unit
from alkit.split.times import Line
from studies.common.dashboards import Dashboard, ExitDashboard, SampleExits, ScheduleDashboard
from studies.delayed import schedule_widget as delayed_widget
from studies.dtp.inverse_widget import InverseDashboard
from studies.ladder.codes_widget import CodeAngles
from studies.split.lanes_widget import LaneDashboard
from tests import dashboards

VIEW = "application/vnd.jupyter.widget-view+json"


class Lengths(nn.Module):
    """Scores texts by how many tokens they have."""

    def forward(self, x: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        tokens = x[1].sum(1, keepdim=True).float()
        return torch.cat([tokens, 5 - tokens], 1)


def _pictures(side: int = 8) -> SampleExits:
    part = Part(torch.rand(4, 1, side, side), torch.arange(4) % 2, 2)
    data = DataSet("made", part, part, part, 2, ("even", "odd"))
    model = BPModel([nn.Sequential(nn.Flatten(), nn.Linear(side * side, 2))])
    return SampleExits(model, data)


def _texts() -> SampleExits:
    vocabulary = vocabulary_of([["a", "<i>", "c"]])
    part = Part(torch.tensor([[2, 3, 4], [2, 3, 0]]), torch.tensor([0, 1]), 2)
    data = DataSet("made", part, part, part, 2, ("long", "short"), vocabulary=vocabulary)
    model = BPModel([nn.Sequential(Lengths(), nn.Linear(2, 2))])
    return SampleExits(model, data)


def _lanes() -> LaneDashboard:
    unit = Unit(Line(each=1e-4), Line(each=2e-4), 1e-4, 1e4, 1000)
    return LaneDashboard([unit] * 3, Workload(20, 100, 3072.0))


MADE: dict[str, Callable[[], Dashboard]] = {
    "ScheduleDashboard": lambda: ScheduleDashboard(2, 2),
    "SampleExits": _pictures,
    "SampleExits of texts": _texts,
    "ExitDashboard": lambda: ExitDashboard(torch.randn(2, 6, 3), torch.arange(6) % 3, [1.0, 2.0]),
    "ScheduleDashboard of 30": lambda: delayed_widget.ScheduleDashboard(modules=2),
    "LaneDashboard": _lanes,
    "InverseDashboard": lambda: InverseDashboard(torch.randn(4, 1, 16, 16), iterations=20),
    "CodeAngles": CodeAngles,
}


@cache
def made(name: str) -> Dashboard:
    """Return a dashboard by name, made once."""
    return MADE[name]()


def _pixels(png: bytes) -> tuple[int, int]:
    """Return width and height, which a PNG's first chunk tells."""
    assert png[12:16] == b"IHDR"
    return struct.unpack(">II", png[16:24])


@pytest.mark.parametrize("name", MADE)
def test_a_point_has_two_pixels(name):
    picture = made(name).picture
    if name == "SampleExits of texts":
        assert not picture.value
        return
    assert _pixels(bytes(picture.value))[0] == 2 * int(picture.width)
    assert 100 <= int(picture.width) <= 800


@pytest.mark.parametrize("name", MADE)
def test_an_output_holds_the_view_and_a_still(name):
    dashboard = made(name)
    data, _ = DisplayFormatter().format(dashboard.view)
    assert data == DisplayFormatter().format(dashboard)[0]
    assert data[VIEW]["model_id"] == dashboard.view.model_id
    assert dashboard.report.value in data["text/html"]
    image = r'<img width="(\d+)" alt="[^"<>]+" src="data:image/png;base64,([^"]+)">'
    shown = re.findall(image, data["text/html"])
    if dashboard.picture.value:
        expected = [(dashboard.picture.width, bytes(dashboard.picture.value))]
    else:
        expected = []
    assert [(width, base64.b64decode(bits)) for width, bits in shown] == expected
    for each in dashboard.controls:
        assert f"{each.description} " in data["text/plain"]
    assert "the controls need a kernel" in data["text/plain"]
    assert not re.search(r"</?(p|b|table|td|div)\b", data["text/plain"])


@pytest.mark.parametrize(("notebook", "name"), dashboards.shown().items())
def test_a_notebook_shows_its_dashboard(notebook, name):
    cells = dashboards.sources(dashboards.ROOT / "notebooks" / f"{notebook}.ipynb")
    assert {name, f"{name}.view"} & {cell.rstrip().rpartition("\n")[2] for cell in cells}


def test_every_dashboard_is_here_and_in_a_notebook():
    assert {name.split()[0] for name in MADE} == set(dashboards.classes())
    books = [dashboards.ROOT / "notebooks" / f"{name}.ipynb" for name in dashboards.shown()]
    text = "\n".join("\n".join(dashboards.sources(book)) for book in books)
    assert [name for name in dashboards.classes() if f"{name}(" not in text] == []
