"""README is short and shows what runs."""

import re

import pytest

from alkit.base.paths import root
from alkit.command import contents
from tests import tasks

LINES, BYTES, PYTHON_BY = 120, 9_500, 30


def page(name: str = "README.md") -> str:
    return (root() / name).read_text(encoding="utf-8")


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", page(), re.DOTALL)


def test_it_is_short_and_python_comes_early():
    text = page()
    assert text.count("\n") <= LINES
    assert len(text.encode()) <= BYTES
    assert text[: text.index("```python")].count("\n") < PYTHON_BY


def test_it_lists_the_course():
    named = [each for each in contents() if each["shelf"] == "course"]
    rows = [
        f"| [{each['name'][:2]}](notebooks/{each['name']}.ipynb) | {each['sentence']} |"
        f" {each['minutes']} |"
        for each in named
    ]
    assert "\n".join(rows) in page()


NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.]*\d)")
CODE_AND_LINKS = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)", re.DOTALL)


@pytest.mark.parametrize("heading", ["What we found", "Which method when"])
def test_its_numbers_are_in_the_results(heading):
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", page(), re.MULTILINE | re.DOTALL)
    said = CODE_AND_LINKS.sub("", found[1] if found else "")
    assert {*NUMBER.findall(said)} <= {*NUMBER.findall(page("RESULTS.md"))}


@pytest.fixture
def run(capsys):
    """What README's first program leaves behind."""
    seen: dict = {}
    exec(blocks()[0], seen)
    return seen


def test_the_first_program_prints_what_stands_below_it(run, capsys):
    printed = capsys.readouterr().out
    assert tasks.alike(printed, re.findall(r"```text\n(.*?)```", page(), re.DOTALL)[0])
    assert printed.splitlines()[0].split()[2] == printed.splitlines()[1].split()[2]  # bp, 1f1b


def test_the_second_saves_and_loads_a_network(run, capsys, tmp_path, monkeypatch):
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    exec(blocks()[1], run)
    loaded = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"tensor\(0\.[6-9]\d*\)", loaded)  # chance is 0.33
