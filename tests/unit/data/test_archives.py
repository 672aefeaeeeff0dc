"""Archives of the official forms: how they are fetched and read, and damaged ones."""

import csv
import hashlib
import io
import os
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from alkit.base import paths
from alkit.data import archives, datasets
from alkit.data.datasets import load


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of `ALKIT_DATA`, in that of the checkout."""
    monkeypatch.setattr(paths, "root", lambda: tmp_path)
    monkeypatch.setenv("ALKIT_DATA", str(tmp_path / "shared"))
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


def packed(path: Path, files: dict[str, bytes], inside: str = "") -> Path:
    """Write a zip, or a tar, of files in a folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(inside + name, content)
        return path
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(inside + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


FILES = {"set/a.txt": b"first\n" * 500, "set/deep/b.bin": bytes(range(256)), "set/empty": b""}


@pytest.mark.parametrize("name", ["s.zip", "s.tgz", "s.tar.gz"])
def test_files_are_the_same_in_each_form_and_none_is_too_large(tmp_path, monkeypatch, name):
    path = packed(tmp_path / name, FILES)
    assert archives.files(path, "", parts=3) == FILES
    assert archives.files(path, r"\.txt$", parts=2) == {"set/a.txt": FILES["set/a.txt"]}
    assert archives.files(path, r"\.(txt|bin)$").keys() == {"a.txt", "b.bin"}
    monkeypatch.setattr(archives, "MOST", 256)
    assert archives.files(path, "b.bin").keys() == {"b.bin"}
    with pytest.raises(ValueError, match=r"set/a.txt has 3,000 bytes"):
        archives.files(path, "a.txt")


def test_a_set_is_fetched_and_another_file_at_the_address_is_not_kept(shared, monkeypatch):
    home, source = shared.parent / "data" / "set", shared.parent / "set.zip"
    source.write_bytes(b"content")
    remote = [source.as_uri(), hashlib.sha256(b"content").hexdigest()]
    monkeypatch.setattr(
        datasets, "sets", lambda: {"set": {"files": ["*.zip"], "remotes": [remote]}}
    )
    with pytest.raises(FileNotFoundError, match=r"fetch\('set'\) downloads it"):
        datasets.find("set")
    assert [*datasets.fetch("set").iterdir()] == [home / "set.zip"]
    assert datasets.find("set").read_bytes() == b"content"
    datasets.find("set").unlink()
    source.write_bytes(b"other")
    with pytest.raises(RuntimeError, match="invalid hash value"):
        datasets.fetch("set")
    assert not list(home.iterdir())


def batch(labels, **odd):
    data = np.random.default_rng(0).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    content = {b"labels": labels, b"data": data} | {key.encode(): own for key, own in odd.items()}
    return pickle.dumps(content, protocol=3)


TEN = [i % 10 for i in range(40)]


class Calls:
    """A pickle that calls a function where it is read."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def cifar10(shared, **replaced):
    """Write a set of one batch out of five."""
    names = {b"label_names": [b"c%d" % i for i in range(10)]}
    files = {"batches.meta": pickle.dumps(names, protocol=3), "data_batch_1": batch(TEN)}
    files |= {"test_batch": batch(TEN[:20])} | replaced
    packed(shared / "cifar-10-python_2.tar.gz", files, "cifar-10-batches-py/")


def test_a_pickle_of_anything_else_is_refused(shared, monkeypatch):
    monkeypatch.chdir(shared)
    evil, codec = Calls(os.system, ("touch escaped",)), Calls(pickle.codecs.encode, ("x", "rot13"))
    for odd, said in ((evil, "posix.system"), (codec, "_codecs.encode"), (io.BytesIO(), "_io.Byt")):
        cifar10(shared, data_batch_1=batch(TEN, odd=odd))
        with pytest.raises(pickle.UnpicklingError, match=f"{said}.* is refused"):
            load("cifar10")
        assert not (shared / "escaped").exists()


BROKEN = [
    batch([*TEN[:39], 10]),
    batch([*TEN[:39], -1]),
    batch(TEN[:39], data=np.zeros((40, 3072), np.uint8)),
    batch(TEN, data=np.zeros((40, 99), np.uint8)),
    batch(TEN)[:-500],
    b"",
]


@pytest.mark.parametrize("content", BROKEN)
def test_a_damaged_batch_is_no_data_set(shared, content):
    cifar10(shared, data_batch_1=content)
    with pytest.raises((ValueError, EOFError, pickle.UnpicklingError)):
        load("cifar10")


def table(rows):
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def zhang(shared, train, test):
    """Write a set of the form of Zhang et al."""
    files = {"train.csv": train, "test.csv": test, "classes.txt": b"A\nB\nC\nD"}
    packed(shared / "ag_news_csv.tgz", files, "ag_news_csv/")


def rows(count):
    """Rows of the form of AG News."""
    content = 'class{} row{}, and "more"\nof it'
    return [[1 + i % 4, f"Title{i}", content.format(i % 4, i)] for i in range(count)]


def words(data, part):
    texts = [[data.vocabulary[i] for i in row] for row in part.x.tolist()]
    return [[word for word in text if word != "<pad>"] for text in texts]


def test_short_texts_are_dropped_from_training_alone_which_makes_the_vocabulary(shared):
    train = [*rows(40), [1, "", ""], [2, "", "The of"], [3, "", "one"]]
    zhang(shared, table(train), table([*rows(4), [2, "", "..."], [1, "unheard", "of"]]))
    data = load("ag_news")
    assert len(data.train) + len(data.validation) == 40
    assert words(data, data.test)[1] == ["title1", "class1", "row1"]
    assert data.test.x[4].tolist() == [1] + [0] * (data.test.x.shape[1] - 1)
    for part in (data.train, data.validation):
        assert [f"class{label}" for label in part.y.tolist()] == [t[1] for t in words(data, part)]
    seen = {word for text in words(data, data.train) for word in text}
    assert {*data.vocabulary} == seen | {"<pad>", "<unk>"}
    assert "unheard" not in seen
    assert any("<unk>" in text for text in words(data, data.validation))
    short = load("ag_news", max_len=2, max_size=7)
    assert (short.test.x.shape[1], len(short.vocabulary)) == (2, 7)


DAMAGED = [  # a set, the content of a table
    ("ag_news", b'"1","t","d"\n"2","t"\n'),  # a short row, which pandas would fill up
    ("ag_news", b'"1","a\nb","d"\n"2","t","d","e"\n'),
    ("ag_news", b'"1","t","d"\n"5","t","d"\n'),
    ("ag_news", b'"0","t","d"\n"1","t","d"\n'),
    ("ag_news", b""),
    ("ag_news", b'"1","t","d"\n"1","\xff","d"\n'),
    ("ag_news", b'"1","t","d"\n"1","t","cut off'),
    ("imdb", b"review,sentiment\na b,good\n"),
    ("imdb", b"review,sentiment\n"),
]


@pytest.mark.parametrize(("name", "content"), DAMAGED)
def test_a_damaged_table_is_no_data_set(shared, name, content):
    zhang(shared, content, table(rows(8)))
    (shared / "IMDB Dataset.csv").write_bytes(content)
    with pytest.raises((ValueError, TypeError, AttributeError), match=r"\w"):
        load(name)


def test_halves_of_imdb_are_those_of_its_folders(shared):
    files = {"train/unsup/0_0.txt": b"\xff"}
    for half in ("train", "test"):
        for i in range(20):
            files[f"{half}/{('neg', 'pos')[i % 2]}/{i}_7.txt"] = f"film {half} number{i}".encode()
    packed(shared / "aclImdb_v1.tar.gz", files, "aclImdb/")
    data = load("imdb")
    assert (len(data.train), len(data.validation), len(data.test)) == (18, 2, 20)
    assert all("train" in text for text in words(data, data.train))
    assert data.test.y.tolist() == [0] * 10 + [1] * 10
