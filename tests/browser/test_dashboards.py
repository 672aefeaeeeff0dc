"""Dashboards in a real browser: JupyterLab, the distribution's Chromium, Python's Playwright.

Every notebook that shows a dashboard is run whole, at smoke; a slider is moved by the keyboard, and
the picture must become another, the one that the kernel has then: its bytes, not what is said above
it. One without a picture, of texts, must say something else.
"""

import ast
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from alkit.base.paths import root
from tests import dashboards

pytestmark = pytest.mark.browser
CONNECTED = (
    "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
    "?.connectionStatus === 'connected'"
)
# not awaited: the command's promise has no time limit
RUN = """() => {
    const cells = window.jupyterapp.commands.execute('notebook:run-all-cells');
    void cells.then(done => { window.ran = String(done) }, error => { window.ran = String(error) });
}"""
START_S, RUN_S = 300, 600  # only a hang takes so long
READY, PICTURE = ".alkit-ready", "img.widget-image"
# what the kernel has: the words' HTML, and the picture as a digest
HAS = """async board => {
    const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    const digest = `__import__("hashlib").sha256(${board}.picture.value).digest()`;
    const asked = {code: '', silent: true};
    asked.user_expressions = {has: `[${board}.report.value, list(${digest})]`};
    const reply = await kernel.requestExecute(asked).done;
    return reply.content.user_expressions.has.data['text/plain'];
}"""
# whether the page has these words, and the digest of its picture
SHOWS = f"""async report => {{
    const words = document.createElement('div');
    words.innerHTML = report;
    const same = document.querySelector('{READY}').textContent === words.textContent;
    const image = document.querySelector('{PICTURE}');
    const read = async () => {{
        await image.decode();
        return (await fetch(image.src)).arrayBuffer();
    }};
    // one that is replaced meanwhile can't be read: none, which is not the kernel's
    const bytes = image ? await read().catch(() => new ArrayBuffer()) : new ArrayBuffer();
    return [same, [...new Uint8Array(await crypto.subtle.digest('SHA-256', bytes))]];
}}"""
NONE = [*hashlib.sha256().digest()]  # the digest where there is no picture
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
    """Start JupyterLab on copies of the notebooks; give its address."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "notebooks").mkdir()
    for name in dashboards.shown():
        shutil.copy(root() / "notebooks" / f"{name}.ipynb", folder / "notebooks")
    (folder / "notebooks" / "studies").symlink_to(root() / "notebooks" / "studies")
    (folder / "figures").symlink_to(root() / "figures")
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


@pytest.fixture
def errors(page: Any, lab: str) -> Iterator[list[str]]:
    """Gather what goes wrong in the page; end its kernel, whose memory the next one needs."""
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    yield found
    for session in json.loads(_ask(f"{lab}/api/sessions")):
        _ask(f"{lab}/api/sessions/{session['id']}", "DELETE")


@pytest.mark.parametrize(("name", "board"), dashboards.shown().items())
def test_a_picture_follows_its_slider(
    page: Any, lab: str, errors: list[str], name: str, board: str, tmp_path: Path
) -> None:
    _open_and_run(page, f"{lab}/lab/tree/notebooks/{name}.ipynb?reset")
    before = _wait_until_shown(page, board)
    _move_a_slider(page)
    _wait_for_another(page, *before)
    _wait_until_shown(page, board)
    _check_picture(page)
    assert errors == []
    output = page.locator(".jp-OutputArea-child", has=page.locator(READY))
    output.screenshot(path=Path(os.environ.get("ALKIT_SCREENSHOTS", tmp_path)) / f"{name}.png")


def _open_and_run(page: Any, address: str) -> None:
    page.goto(address, wait_until="domcontentloaded")
    # run before the kernel is connected, and JupyterLab asks which kernel is meant
    page.wait_for_function(CONNECTED, timeout=1000 * START_S)
    page.evaluate(RUN)
    # to the end: cells below the dashboard set its values, too
    page.wait_for_function("() => window.ran !== undefined", timeout=1000 * RUN_S)
    assert page.locator('[data-mime-type="application/vnd.jupyter.error"]').all_inner_texts() == []
    assert page.evaluate("window.ran") == "true"
    page.wait_for_selector(READY, timeout=1000 * START_S)


def _move_a_slider(page: Any) -> None:
    handle = page.locator(".noUi-handle").first
    at, most = (float(handle.get_attribute(f"aria-value{which}")) for which in ("now", "max"))
    handle.focus()
    page.keyboard.press("ArrowRight" if at < most else "ArrowLeft")


def _wait_until_shown(page: Any, board: str) -> tuple[str, list[int]]:
    """Wait until the page shows what the kernel has: return its words, and its picture's digest."""
    report, digest = ast.literal_eval(page.evaluate(HAS, board))
    _wait(page, lambda: page.evaluate(SHOWS, report) == [True, digest], f"what {board} has")
    return report, digest


def _wait_for_another(page: Any, report: str, digest: list[int]) -> None:
    """Wait until the picture is another; where there is none, the words.

    The kernel isn't asked meanwhile: it may redraw in another thread, a subshell, and whatever is
    run beside that, even nothing, shows and closes all open figures at its end.
    """

    def another() -> bool:
        same, seen = page.evaluate(SHOWS, report)
        return not same if digest == NONE else seen not in (digest, NONE)

    _wait(page, another, "another picture")


def _wait(page: Any, done: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + RUN_S
    while not done():
        if time.monotonic() > until_s:
            raise TimeoutError(f"waited {RUN_S} s for {what}")
        page.wait_for_timeout(200)


def _check_picture(page: Any) -> None:
    """If there is one it has been loaded, and a point of the screen has two of its pixels."""
    sizes = page.evaluate(
        "picture => [...document.querySelectorAll(picture)]"
        ".map(image => [image.naturalWidth, image.clientWidth])",
        PICTURE,
    )
    for pixels, points in sizes:
        assert pixels >= 2 * points > 200


def _ask(address: str, method: str = "GET") -> bytes:
    with urllib.request.urlopen(
        urllib.request.Request(address, method=method), timeout=START_S
    ) as answer:
        return answer.read()


def _wait_for(address: str, server: "subprocess.Popen[bytes]") -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        if server.poll() is not None:
            raise RuntimeError(f"JupyterLab ended with status {server.returncode}")
        try:
            _ask(f"{address}/api")
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise TimeoutError(f"JupyterLab did not answer within {START_S} s")
