"""Running text: files, articles and embedded text."""

import pytest

from studies.delayed.prose import load_prose, read_text


def test_files_and_embedded_text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("One.\nTwo.\n\n\nThree.\n")
    assert read_text(path) == [["One.", "Two."], ["Three."]]
    assert load_prose(str(path), "test") == [["Three."]]
    assert len(load_prose("pydocs")) > 100


@pytest.mark.realdata
def test_wikitext_is_cut_into_articles():
    try:
        documents = load_prose("wikitext", "valid")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert len(documents) == 60
    assert documents[0][0].startswith("Homarus gammarus , known as the European lobster")
    assert sum(map(len, documents)) > 5_000


def test_bad_requests(tmp_path):
    with pytest.raises(ValueError, match="give train, valid or test"):
        load_prose("pydocs", "dev")
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="holds no sentence"):
        read_text(tmp_path / "empty.txt")
