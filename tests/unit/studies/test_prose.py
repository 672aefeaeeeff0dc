"""Running text: articles and embedded text."""

import pytest

from studies.delayed.prose import load_prose


@pytest.mark.realdata
def test_wikitext_is_cut_into_articles():
    try:
        documents = load_prose("wikitext", "valid")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert len(documents) == 60
    assert documents[0][0].startswith("Homarus gammarus , known as the European lobster")
    assert sum(map(len, documents)) > 5_000
