"""The site's schedules in a real browser, opened from disk: charts follow the sliders.

What the page says must be the clock's step times, before and after sliders are moved.
"""

import importlib.util
import json
import os
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from alkit.base.paths import root
from alkit.schedule.clock import simulate

pytestmark = pytest.mark.browser
SITE = root() / ".site"
HTML = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="site.css">
<div id="alkit-schedules"></div>
<script src="schedules_data.js"></script><script src="schedules.js"></script>"""


def _schedules() -> Any:
    spec = importlib.util.spec_from_file_location("site_schedules", SITE / "schedules.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SHOWN = ("bp_cut", "1f1b", "pipedream", "al_pipeline")  # to begin with, in the page's order


def _expected(made: Any, layers: int, workers: int, costs: tuple[float, ...]) -> list[float]:
    """Return the clock's step times."""
    found = []
    for name in SHOWN:
        if (schedule := made.schedules(layers, workers).get(name)) is None:
            continue
        own = made.graph(name, schedule)
        cost = partial(made.cost, own, costs=costs)
        timeline = simulate(schedule, lambda task, c=cost: c(task.kind, task.stage), made.BATCHES)
        found.append(round(timeline.steady_s, 2))
    return found


def test_the_pages_schedules_are_the_clocks(page: Any, tmp_path: Path) -> None:
    made = _schedules()
    for name in ("schedules.js", "site.css"):
        shutil.copy(SITE / "static" / name, tmp_path)
    data = f"const ALKIT_SCHEDULES = {json.dumps(made.graphs())};"
    (tmp_path / "schedules_data.js").write_text(data, encoding="utf-8")
    (tmp_path / "page.html").write_text(HTML, encoding="utf-8")
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "page.html").as_uri())

    def said() -> list[float]:
        words = page.locator(".times").inner_text()
        return [float(number) for number in re.findall(r" ([\d.]+)(?: ·|$)", words)]

    assert said() == pytest.approx(_expected(made, 4, 4, (1.0, 2.0, 0.3)), abs=0.011)
    before = page.locator(".charts").inner_html()
    page.locator("#workers").focus()
    page.keyboard.press("ArrowLeft")
    page.locator("#backward").focus()
    page.keyboard.press("ArrowRight")
    assert said() == pytest.approx(_expected(made, 4, 3, (1.0, 2.1, 0.3)), abs=0.011)
    assert page.locator(".charts").inner_html() != before
    assert page.locator("svg[role=img]").count() == 3  # PipeDream has a worker per layer
    assert errors == []
    shots = Path(os.environ.get("ALKIT_SCREENSHOTS", tmp_path))
    page.screenshot(path=shots / "site_schedules.png")
