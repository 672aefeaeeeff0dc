"""What a sceptic takes instead of elastic training, against a plain loop in double precision."""

import pytest

from studies.elastic.rivals import data_parallel
from tests.unit.elastic.helpers import SETTINGS, TASKS, Found, close, images, make_vit, plain

NOTHING_FROZEN = SETTINGS | {"freeze": "none"}


@pytest.mark.parametrize("task", TASKS)
def test_data_parallel_ends_where_the_plain_loop_does(task):
    make, data = TASKS[task]
    found = data_parallel(make(), data(), NOTHING_FROZEN)
    expected = plain(make(), data(), NOTHING_FROZEN)
    close(Found(found), expected, 1e-10)
    assert len(found.history) == NOTHING_FROZEN["epochs"]
    with pytest.raises(ValueError, match="among 3 ranks"):
        data_parallel(make_vit(), images(), SETTINGS, ranks=3)
