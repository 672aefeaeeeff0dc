"""The page of ordinary situations is what runs."""

import re

import pytest
from torch import nn

from tests.conformance import situations
from tests.conformance.families import FAMILIES
from tests.conformance.situations import PAGE, SITUATIONS, cell

METHODS = [each.method for each in FAMILIES]


def committed() -> dict[tuple[str, str], str]:
    """Return what the page says, by situation and method."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    said = dict(re.findall(r"^(\d+)\. (.*)$", "\n".join(lines), re.MULTILINE))
    rows = [[each.strip() for each in line.strip("| ").split("|")] for line in lines if "|" in line]
    return {
        (row[0], method): said.get(mark, "")
        for row in rows[2:]
        for method, mark in zip(METHODS, row[1:], strict=True)
    }


SAID = committed()


def test_the_page_has_every_situation_and_method():
    assert list(SAID) == [(name, method) for name in SITUATIONS for method in METHODS]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SITUATIONS)
def test_a_cell(name, method):
    assert situations.line(cell(SITUATIONS[name], method)) == SAID[name, method]


def test_a_crash_in_torchs_words_is_no_refusal():
    class Broken(nn.Linear):
        def forward(self, x):
            return super().forward(x[:, :-1] if self.training else x)

    broken = situations.Situation("", lambda: (Broken(8, 3), (situations.X, situations.Y), {}))
    with pytest.raises(AssertionError, match="RuntimeError of .*torch"):
        cell(broken, "bp")
