"""Task pages: a page shows its script to the letter, and the script prints what the page says."""

import re

import pytest

from alkit.base.paths import root
from tests import tasks

WANTED = {"own_images", "own_texts", "own_model", "devices", "machines", "resume", "early_exit"}
WANTED |= {"regression", "split_at_home", "flower", "restarts", "judge"}


@pytest.mark.parametrize("page", tasks.PAGES, ids=lambda page: page.stem)
def test_a_page_shows_its_script(page):
    shown = tasks.block(page, "python")
    assert shown == page.with_suffix(".py").read_text(), "run python -m tests.tasks"
    for file in page.parent.glob(f"{page.stem}.json"):
        assert tasks.block(page, "json") == file.read_text()


@pytest.mark.machines
@pytest.mark.parametrize("page", tasks.RUN, ids=lambda page: page.stem)
def test_a_script_prints_what_its_page_says(page):
    said = tasks.printed(page)
    assert tasks.alike(said, tasks.block(page, "text")), said


def test_readme_links_every_page():
    linked = re.findall(r"\(docs/tasks/(\w+)\.md\)", (root() / "README.md").read_text())
    assert set(linked) == {page.stem for page in tasks.PAGES} == WANTED


def test_other_outputs_are_seen():
    page = "bp accuracy 0.91\n8 rows"
    assert tasks.alike("bp accuracy 0.85\n9 rows", page)
    assert not tasks.alike("bp accuracy 0.61\n8 rows", page)
    assert not tasks.alike("al accuracy 0.91\n8 rows", page)
