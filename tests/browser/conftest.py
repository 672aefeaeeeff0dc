"""A page of the distribution's Chromium, driven by Python's Playwright."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = os.environ.get("ALKIT_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture
def page() -> Iterator[Any]:
    """Give a page of a browser of its own, on a screen of two pixels a point, or skip."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here: install your distribution's, or name one in ALKIT_CHROMIUM")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = ["--disable-gpu", "--disable-dev-shm-usage"]
        options += ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        size = {"width": 1400, "height": 1200}
        yield browser.new_page(viewport=size, device_scale_factor=2)
        browser.close()
