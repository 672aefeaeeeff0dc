"""The page of ordinary situations is what runs."""

import pytest
from torch import nn

from tests.conformance import situations
from tests.conformance.families import FAMILIES
from tests.conformance.situations import SITUATIONS, cell

METHODS = [each.method for each in FAMILIES]


SAID = situations.committed()


def test_the_page_has_every_situation_and_method():
    assert set(SAID) == {(name, method) for name in SITUATIONS for method in METHODS}
    assert situations.PAGE.read_text(encoding="utf-8") == situations.page(SAID)


def test_readme_has_the_count():
    readme = (situations.ROOT / "README.md").read_text(encoding="utf-8")
    assert situations.count() in " ".join(readme.split())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SITUATIONS)
def test_a_cell(name, method):
    assert situations.kind(cell(SITUATIONS[name], method)) == SAID[name, method]


def test_a_crash_in_torchs_words_is_no_refusal():
    class Broken(nn.Linear):
        def forward(self, x):
            return super().forward(x[:, :-1] if self.training else x)

    broken = situations.Situation("", lambda: (Broken(8, 3), (situations.X, situations.Y), {}))
    with pytest.raises(AssertionError, match="RuntimeError of .*torch"):
        cell(broken, "bp")
