"""The tables of what every method takes: every tick is tried, every dash a refusal."""

import pytest

from tests import doors

CELLS = [(method, feature) for feature in doors.FEATURES for method in doors.METHODS]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("method", "feature"), CELLS, ids=[": ".join(cell) for cell in CELLS])
def test_a_method_takes_it_or_says_why_not(method, feature):
    tried = doors.FEATURES[feature]
    if (method, feature) not in doors.REFUSED:
        tried(method)
        return
    with pytest.raises((ValueError, TypeError), match=f"(?s){doors.REFUSED[method, feature]}"):
        tried(method)


@pytest.mark.parametrize("page", doors.PAGES)
def test_a_page_has_its_table(page):
    assert doors.on_page(page) == doors.table(doors.PAGES[page]), "run python -m tests.doors"
