"""A dashboard is sharp where a point has two pixels, and a still for readers without a kernel."""

import base64
import re
import struct

from IPython.core.formatters import DisplayFormatter

from studies.common.dashboards import ScheduleDashboard
from tests import dashboards

VIEW = "application/vnd.jupyter.widget-view+json"


def test_an_output_holds_the_view_and_a_still_of_two_pixels_a_point():
    dashboard = ScheduleDashboard(2, 2)
    data, _ = DisplayFormatter().format(dashboard.view)
    assert data == DisplayFormatter().format(dashboard)[0]
    assert data[VIEW]["model_id"] == dashboard.view.model_id
    assert dashboard.report.value in data["text/html"]
    image = r'<img width="(\d+)" alt="[^"<>]+" src="data:image/png;base64,([^"]+)">'
    ((width, shown),) = re.findall(image, data["text/html"])
    png = base64.b64decode(shown)
    assert (width, png) == (dashboard.picture.width, bytes(dashboard.picture.value))
    assert struct.unpack(">I", png[16:20])[0] == 2 * int(width)  # as a PNG's first chunk tells
    assert "the controls need a kernel" in data["text/plain"]


def test_every_dashboard_is_in_a_notebook():
    books = [dashboards.ROOT / "notebooks" / f"{name}.ipynb" for name in dashboards.shown()]
    text = "\n".join("\n".join(dashboards.sources(book)) for book in books)
    assert [name for name in dashboards.classes() if f"{name}(" not in text] == []
