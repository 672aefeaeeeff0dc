"""Published tables hold what the sheet says."""

import pytest

from studies.common.published import published


def test_published_numbers_are_those_of_the_sheet():
    found = published("al_accuracy")
    assert len(found) == 16
    assert found.source.notna().all()
    table = found.set_index(["data", "model", "method"])
    assert table.final["tiny_imagenet", "resnet", "al"] == 42.00
    assert table.final_sd["imdb", "lstm", "bp"] == 0.38
    assert set(table.n) == {10}
    with pytest.raises(FileNotFoundError, match="al_accuracy"):  # those that there are
        published("nothing")
