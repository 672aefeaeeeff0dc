"""A decimal number among README's findings is one of RESULTS.md."""

import re

import pytest

from alkit.base.paths import root

HEADINGS = ("What we found", "Which method when")
NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.]*\d)")
CODE_AND_LINKS = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)", re.DOTALL)


def missing(said: str, recorded: str) -> list[str]:
    return [n for n in NUMBER.findall(CODE_AND_LINKS.sub("", said)) if n not in recorded]


@pytest.mark.parametrize("heading", HEADINGS)
def test_numbers_of_readme_are_in_the_results(heading):
    readme, results = ((root() / f"{name}.md").read_text() for name in ("README", "RESULTS"))
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", readme, re.MULTILINE | re.DOTALL)
    assert missing(found[1] if found else "", NUMBER.findall(results)) == []
