"""`alkit data`: what is here, and fetching the rest."""

import re
from pathlib import Path

import pytest

from alkit.data import catalog, download, paths
from alkit.records import cli


@pytest.fixture(autouse=True)
def checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "root", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALKIT_DATA", raising=False)
    return tmp_path


def place(path: Path, content: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def rows(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    assert cli.main(["data", "list"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    return {words[0]: words[1:] for words in lines if words}


def test_list_says_what_is_here_a_part_or_missing(checkout, monkeypatch, capsys):
    shared = checkout / "shared"
    monkeypatch.setenv("ALKIT_DATA", str(shared))
    place(shared / "ag_news" / "ag_news_csv_train9995.tgz")
    place(shared / "glue" / "SST-2.zip")
    place(checkout / "data" / "svhn" / "train_32x32.mat")
    place(checkout / "data" / "mnist" / "train-images-idx3-ubyte")  # unpacked
    place(checkout / "glove" / "glove.6B.50d.txt")
    table = rows(capsys)
    assert table["digits"][0] == "embedded"
    assert table["ag_news"][:2] == ["part", "shared/ag_news/ag_news_csv_train9995.tgz"]
    assert table["sst2"][:2] == ["here", "shared/glue/SST-2.zip"]
    assert table["svhn"][:2] == ["here", "data/svhn"]
    assert table["mnist"][:2] == ["here", "data/mnist"]
    assert table["cifar10"][0] == "missing"
    assert "alkit data get cifar10" in " ".join(table["cifar10"])
    assert "163" in table["cifar10"]  # MiB
    assert table["glove.6B"][0] == "part"
    assert set(table) >= set(catalog.ENTRIES)


def test_what_is_found_is_whole_and_has_its_marker(checkout, monkeypatch):
    monkeypatch.setenv("ALKIT_DATA", str(checkout / "shared"))
    part = place(checkout / "shared" / "cifar10" / "cifar-10-python_batch1.tar.gz")
    assert catalog.find("cifar10") == part
    whole = place(checkout / "data" / "cifar10" / "cifar-10-python.tar.gz")
    assert catalog.find("cifar10") == whole
    place(checkout / "data" / "cifar10" / "cifar-10-python.tar.gz.partial")
    assert catalog.find("cifar10") == whole
    first = place(checkout / "shared" / "cifar-10-batches-py" / "test_batch").parent
    assert catalog.find("cifar10") == first  # what ALKIT_DATA points to comes first
    place(checkout / "data" / "imdb" / "IMDB Dataset.csv.zip.partial")
    assert catalog.look("imdb") == ("missing", None)
    place(checkout / "data" / "tiny_imagenet" / "some-cache.npz")
    with pytest.raises(FileNotFoundError):
        catalog.find("tiny_imagenet")
    place(checkout / "data" / "tiny-imagenet-200" / "wnids.txt")
    assert catalog.find("tiny_imagenet") == checkout / "data" / "tiny-imagenet-200"


def test_a_missing_set_says_where_was_looked_and_what_fetches_it(checkout, monkeypatch):
    monkeypatch.setenv("ALKIT_DATA", str(checkout / "shared"))
    with pytest.raises(FileNotFoundError) as caught:
        catalog.find("dbpedia")
    message = str(caught.value)
    assert f"{checkout}/shared" in message
    assert f"{checkout}/data" in message
    assert "dbpedia_csv.tgz" in message
    assert "`alkit data get dbpedia` fetches it (65 MiB)" in message
    with pytest.raises(FileNotFoundError, match="put the official wikitext-103-v1.zip"):
        catalog.find("wikitext")


def test_get_prints_the_files_and_their_sums_or_one_message(checkout, monkeypatch, capsys):
    def said(words, code):
        assert cli.main(words.split()) == code
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        return err

    known = "alkit: no data set 'fashion'; there are"
    assert said("data get fashion", 2).startswith(known)
    url = "alkit: ftp://x/SST-2.zip: only http"
    assert said("data get sst2 --mirror ftp://x", 2).startswith(url)
    given = []

    def get(*arguments, mirror, out):
        given.append((arguments, mirror, out))
        if mirror is None:
            raise download.FetchError("http://x: 404 Not Found")
        return [(checkout / "data" / "x.zip", "sha256:12"), (checkout / "data" / "y", "")]

    monkeypatch.setattr(download, "get", get)
    assert cli.main("data get sst2 --mirror http://127.0.0.1:1 --out there".split()) == 0
    assert given == [(("sst2",), "http://127.0.0.1:1", Path("there"))]
    assert capsys.readouterr().out == "data/x.zip  sha256:12\ndata/y\n"
    assert said("data get sst2", 1) == "alkit: http://x: 404 Not Found\n"


@pytest.mark.parametrize("entry", catalog.ENTRIES.values(), ids=lambda entry: entry.name)
def test_the_catalogue_is_well_formed(entry):
    assert catalog.ENTRIES[entry.name] is entry
    assert entry.remotes or entry.how
    for remote in entry.remotes:
        assert remote.url.startswith(("https://", "http://"))
        assert remote.size > 0
        # no sum of the copies of Zhang's sets is known: that of the first download is kept
        known = entry.name not in ("ag_news", "dbpedia")
        assert bool(re.fullmatch(r"[0-9a-f]{64}", remote.sha256)) == known
    if len(entry.remotes) == 1:
        assert entry.archives[0] == entry.remotes[0].file
