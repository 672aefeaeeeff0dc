"""Text sets, from made archives of the official form, and the shipped sentences of docstrings."""

import csv
import gzip
import hashlib
import io
import json
from pathlib import Path

import pytest
import torch

from alkit.data import datasets
from alkit.data.datasets import load
from tests.unit.data.made import packed


def table(rows):
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def rows(count, classes=4):
    """Rows of the form of AG News; the content's first word is the class, its second the row."""
    return [
        [1 + i % classes, f"Title{i}", f'class{i % classes} row{i}, and "more"\nof it']
        for i in range(count)
    ]


def zhang(shared, train=None, test=None, name="ag_news", part="", classes=4):
    """Write a set of the form of Zhang et al."""
    half = train if isinstance(train, bytes) else table(train or rows(10 * classes, classes))
    files = {"train.csv": half, "test.csv": table(test or rows(2 * classes, classes))}
    files |= {"train_titled.csv": b"not read"}
    files["classes.txt"] = "\n".join(f"Kind{label}" for label in range(classes)).encode()
    return packed(shared / f"{name}_csv{part}.tgz", files, f"{name}_csv/")


def words(data, part):
    texts = [[data.vocabulary[i] for i in row] for row in part.x.tolist()]
    return [[word for word in text if word != "<pad>"] for text in texts]


@pytest.mark.parametrize(("name", "classes"), [("ag_news", 4), ("dbpedia", 14)])
def test_sets_of_zhang_et_al(shared, name, classes):
    zhang(shared, name=name, part="_train40", classes=classes)
    data = load(name)
    k = classes
    assert data.describe() == (
        f"{name}: {9 * k} train, {k} validation, {2 * k} test; {k} classes; texts of up to 3"
        f" tokens; vocabulary {2 + 9 * k * 2 + k}"
    )
    assert data.class_names == tuple(f"Kind{label}" for label in range(k))
    assert data.test.y.tolist() == [*range(k)] * 2
    assert words(data, data.test)[1] == ["title1", "class1", "row1"]
    for part in (data.train, data.validation):
        for text, label in zip(words(data, part), part.y.tolist(), strict=True):
            assert text[1] == f"class{label}"
    assert torch.bincount(data.validation.y).tolist() == [1] * k
    again, other = load(name), load(name, seed=2)
    assert torch.equal(data.train.x, again.train.x)
    assert words(data, data.train) != words(other, other.train)
    short = load(name, max_len=2, max_size=7)
    assert short.test.x.shape[1] == 2
    assert len(short.vocabulary) == 7
    with pytest.raises(TypeError, match="max_length"):
        load(name, max_length=3)


def test_short_texts_are_dropped_from_training_alone_which_makes_the_vocabulary(shared):
    train = [*rows(40), [1, "", ""], [2, "", "The of"], [3, "", "one"]]
    zhang(shared, train, [*rows(4), [2, "", "..."], [1, "unheard", "of"]])
    data = load("ag_news")
    assert len(data.train) + len(data.validation) == 40
    assert data.test.x[4].tolist() == [1] + [0] * (data.test.x.shape[1] - 1)
    seen = {word for text in words(data, data.train) for word in text}
    assert {*data.vocabulary} == seen | {"<pad>", "<unk>"}
    assert "unheard" not in seen
    assert any("<unk>" in text for text in words(data, data.validation))


DAMAGED = [  # a set, the content of a table
    ("ag_news", b'"1","t","d"\n"2","t"\n'),  # a short row, which pandas would fill up
    ("ag_news", b'"1","a\nb","d"\n"2","t","d","e"\n'),
    ("ag_news", b'"1","t"\n'),
    ("ag_news", b'"1","t","d"\n"5","t","d"\n'),
    ("ag_news", b'"0","t","d"\n"1","t","d"\n'),
    ("ag_news", b'"1","t","d"\n"x","t","d"\n'),
    ("ag_news", b""),
    ("ag_news", b'"1","t","d"\n"1","\xff","d"\n'),
    ("ag_news", b'"1","t","d"\n"1","t","cut off'),
    ("imdb", b"review,sentiment\na b,good\n"),
    ("imdb", b"review,sentiment\n"),
    ("imdb", b"review,sentiment\na\n"),
]


@pytest.mark.parametrize(("name", "content"), DAMAGED)
def test_a_damaged_table_is_no_data_set(shared, name, content):
    zhang(shared, content)
    (shared / "IMDB Dataset.csv").write_bytes(content)
    with pytest.raises((ValueError, TypeError, AttributeError), match=r"\w"):
        load(name)


def imdb(count=40):
    names = ("negative", "positive")
    half = ["train"] * (count // 2) + ["test"] * (count // 2)
    return [[f"{names[i % 2]} film<br />{half[i]} number{i}", names[i % 2]] for i in range(count)]


@pytest.mark.parametrize("form", ["csv", "zip", "tar"])
def test_imdb_in_each_form(shared, form):
    whole = table([["review", "sentiment"], *imdb()])
    if form == "csv":  # as seed 000 calls it
        (shared / "IMDB_Dataset.csv").write_bytes(whole)
    elif form == "zip":
        packed(shared / "imdb" / "IMDB Dataset.csv.zip", {"IMDB Dataset.csv": whole})
    else:
        files = {"train/unsup/0_0.txt": b"\xff", "README": b"x"}
        for i, (text, label) in enumerate(imdb()):
            files[f"{'train' if i < 20 else 'test'}/{label[:3]}/{i}_7.txt"] = text.encode()
        packed(shared / "aclImdb_v1.tar.gz", files, "aclImdb/")
    data = load("imdb")
    assert data.describe().startswith("imdb: 18 train, 2 validation, 20 test; 2 classes;")
    assert data.class_names == ("negative", "positive")
    for part in (data.train, data.validation, data.test):
        for text, label in zip(words(data, part), part.y.tolist(), strict=True):
            assert text[0] == data.class_names[label] or text[0] == "<unk>"
    assert all("test" not in text for text in words(data, data.train))
    assert all("train" not in text for text in words(data, data.test))


def test_sst2_takes_quotes_as_they_are_and_dev_as_test(shared):
    path = packed(shared / "glue" / "SST-2.zip", {"readme": b""})
    with pytest.raises(KeyError, match=r"train.tsv"):
        load("sst2")
    train = "sentence\tlabel\n" + "".join(f'row{i} a "good film \t{i % 2}\n' for i in range(20))
    dev = b'sentence\tlabel\n"bad film\t0\nfine film\t1\n'
    files = {"train.tsv": train.encode(), "dev.tsv": dev, "original/train.tsv.txt": b""}
    packed(path, files, "SST-2/")
    data = load("sst2")
    assert (len(data.train), len(data.validation), len(data.test)) == (18, 2, 2)
    assert data.test.y.tolist() == [0, 1]
    assert words(data, data.test) == [["<unk>", "film"], ["<unk>", "film"]]


GOLDEN = "4cd4fb165e576313e8292f2e139060699fd237b659dc632206b57b4f0f9a8d8f"


def test_the_sentences_of_docstrings_are_the_frozen_ones_and_keep_their_notices():
    """Their data set has its digest in test_realdata.py."""
    found = datasets.sentences()
    texts, labels = found["text"].tolist(), found["label"].tolist()
    digest = hashlib.sha256(json.dumps([texts, labels, []]).encode())  # as it was frozen
    assert digest.hexdigest() == GOLDEN
    file = Path(datasets.__file__).with_name("pydocs.txt.gz").read_bytes()
    lines = gzip.decompress(file).decode().split("\n")
    head = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    notices = ["numpy 2.4.6", "NumPy Developers", "PyData Development Team", "scikit-learn deve"]
    notices += ["SciPy Developers", "Facebook", "this list of conditions and the following"]
    assert [each for each in notices if each not in head] == []
    said = "pydocs: 3600 train, 1200 validation, 1200 test; 5 classes; texts of up to 40 tokens; "
    assert load("pydocs").describe() == said + "vocabulary 5000"
