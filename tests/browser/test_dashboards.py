"""Dashboards in a real browser: JupyterLab, the distribution's Chromium, Python's Playwright.

A notebook of one cell is opened and run; its dashboard's slider is moved by the keyboard, and what
the dashboard says must change.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from alkit.data.paths import root

pytestmark = pytest.mark.browser
CONNECTED = (
    "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
    "?.connectionStatus === 'connected'"
)
START_S, RUN_S = 300, 600  # only a hang takes so long
READY = ".alkit-ready"
DASHBOARDS = {
    "schedule": "from alkit.figures.dashboards import ScheduleDashboard\n"
    "ScheduleDashboard(4, 2).view",
    "placement": "from studies.placement_widget import PlacementDashboard\n"
    "PlacementDashboard(4, 2).view",
}
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
CONFIG = """
from jupyterlab.galata import configure_jupyter_server

configure_jupyter_server(c)  # no token: for this test alone, on the loopback device
c.ServerApp.ip = "127.0.0.1"
c.ServerApp.port = {port}
c.ServerApp.port_retries = 0
c.ServerApp.root_dir = {folder!r}
c.ServerApp.allow_root = True
c.ServerApp.open_browser = False
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start JupyterLab on a folder with a notebook a dashboard; give its address."""
    folder = tmp_path_factory.mktemp("lab")
    for name, code in DASHBOARDS.items():
        node = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)], metadata=KERNEL)
        nbformat.write(node, folder / f"{name}.ipynb")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path_factory.mktemp("config") / "jupyter_config.py"
    config.write_text(CONFIG.format(port=port, folder=str(folder)))
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--config", str(config)],
        env={**os.environ, "PYTHONPATH": str(root()), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(address, server)
        yield address
    finally:
        server.terminate()
        server.wait(START_S)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_follows_its_slider(page: Any, lab: str, name: str, tmp_path: Path) -> None:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    _open_and_run(page, f"{lab}/lab/tree/{name}.ipynb?reset")
    before = page.locator(READY).inner_text()
    handle = page.locator(".noUi-handle").first
    handle.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "([where, before]) => document.querySelector(where).innerText !== before",
        arg=[READY, before],
        timeout=1000 * RUN_S,
    )
    _check_picture(page)
    assert page.locator('[data-mime-type="application/vnd.jupyter.error"]').count() == 0
    assert errors == []
    shots = Path(os.environ.get("ALKIT_SCREENSHOTS", tmp_path))
    page.screenshot(path=shots / f"{name}.png")


def _open_and_run(page: Any, address: str) -> None:
    page.goto(address, wait_until="domcontentloaded")
    # run before the kernel is connected, and JupyterLab asks which kernel is meant
    page.wait_for_function(CONNECTED, timeout=1000 * START_S)
    # not awaited: the command's promise has no time limit
    page.evaluate("() => { void window.jupyterapp.commands.execute('notebook:run-all-cells') }")
    page.wait_for_selector(READY, timeout=1000 * RUN_S)


def _check_picture(page: Any) -> None:
    """The dashboard's picture has been loaded and is not empty."""
    sizes = page.evaluate(
        "[...document.querySelectorAll('.widget-image')].map(image => image.naturalWidth)"
    )
    assert sizes
    assert min(sizes) > 300


def _wait_for(address: str, server: "subprocess.Popen[bytes]") -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        if server.poll() is not None:
            raise RuntimeError(f"JupyterLab ended with status {server.returncode}")
        try:
            with urllib.request.urlopen(f"{address}/api", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise TimeoutError(f"JupyterLab did not answer within {START_S} s")
