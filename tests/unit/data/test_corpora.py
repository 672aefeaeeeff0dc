"""Text sets, from made archives of the official form."""

import csv
import io

import pytest
import torch

from alkit.base import paths
from alkit.data.datasets import load
from alkit.data.parts import DataSet, Part

from .test_archives import make_tar, make_zip

AG = "World Sports Business Sci/Tech".split()


@pytest.fixture(autouse=True)
def shared(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "root", lambda: tmp_path)
    monkeypatch.setenv("ALKIT_DATA", str(tmp_path / "shared"))
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


def table(rows: list[list], **options: object) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n", **options).writerows(rows)
    return text.getvalue().encode()


def rows(count: int, classes: int = 4) -> list[list]:
    """Rows of the form of AG News; the content's first word is the class, its second the row."""
    return [
        [1 + i % classes, f"Title{i}", f'class{i % classes} row{i}, and "more"\nof it']
        for i in range(count)
    ]


def ag_news(train: list[list] | None = None, test: list[list] | None = None) -> dict[str, bytes]:
    train, test = train or rows(40), test or rows(8)
    return {
        "ag_news_csv/train.csv": table(train),
        "ag_news_csv/test.csv": table(test),
        "ag_news_csv/train_titled.csv": b"not read",
        "ag_news_csv/classes.txt": "\n".join(AG).encode(),
    }


def words(data: DataSet, part: Part) -> list[list[str]]:
    texts = [[data.vocabulary[i] for i in row] for row in part.x.tolist()]
    return [[word for word in text if word != "<pad>"] for text in texts]


def test_ag_news(shared):
    make_tar(shared / "ag_news_csv_train40.tgz", ag_news())
    data = load("ag_news")
    assert data.describe() == (
        "ag_news: 36 train, 4 validation, 8 test; 4 classes; texts of up to 3 tokens;"
        f" vocabulary {2 + 36 * 2 + 4}"
    )
    assert data.class_names == tuple(AG)
    assert data.test.y.tolist() == [0, 1, 2, 3] * 2
    assert data.test.x.dtype == torch.int64
    assert words(data, data.test)[1] == ["title1", "class1", "row1"]
    for part in (data.train, data.validation):
        for text, label in zip(words(data, part), part.y.tolist(), strict=True):
            assert text[1] == f"class{label}"
    assert torch.bincount(data.validation.y).tolist() == [1, 1, 1, 1]


def test_options_of_texts(shared):
    make_tar(shared / "ag_news_csv.tgz", ag_news())
    short = load("ag_news", max_len=2, max_size=7)
    assert short.test.x.shape[1] == 2
    assert len(short.vocabulary) == 7
    with pytest.raises(TypeError, match="max_length"):
        load("ag_news", max_length=3)


def test_short_texts_are_dropped_from_training_alone_which_makes_the_vocabulary(shared):
    train = [*rows(40), [1, "", ""], [2, "", "The of"], [3, "", "one"]]
    make_tar(shared / "ag_news_csv.tgz", ag_news(train, [*rows(4), [2, "", "..."]]))
    data = load("ag_news")
    assert len(data.train) + len(data.validation) == 40
    assert data.test.x[4].tolist() == [1] + [0] * (data.test.x.shape[1] - 1)
    make_tar(shared / "ag_news_csv.tgz", ag_news(test=[[1, "unheard", "of"]]))
    data = load("ag_news")
    known = set(data.vocabulary)
    assert "unheard" not in known
    seen = {word for text in words(data, data.train) for word in text}
    assert known == seen | {"<pad>", "<unk>"}
    assert any("<unk>" in text for text in words(data, data.validation))


def test_the_split_is_a_function_of_the_seed(shared):
    make_tar(shared / "ag_news_csv.tgz", ag_news())
    one, again, other = (load("ag_news", seed=s) for s in (1, 1, 2))
    assert torch.equal(one.train.x, again.train.x)
    assert words(one, one.train) != words(other, other.train)


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
    if name == "ag_news":
        make_tar(shared / "ag_news_csv.tgz", ag_news() | {"ag_news_csv/train.csv": content})
    else:
        (shared / "IMDB Dataset.csv").write_bytes(content)
    with pytest.raises((ValueError, TypeError, AttributeError), match=r"\w"):
        load(name)


def test_missing_files_and_sets_without_texts_are_named(shared):
    files = ag_news()
    files.pop("ag_news_csv/test.csv")
    path = make_tar(shared / "ag_news_csv.tgz", files)
    with pytest.raises(KeyError, match="test.csv"):
        load("ag_news")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"alkit.datasets.fetch\('ag_news'\) downloads it"):
        load("ag_news")
    make_zip(shared / "SST-2.zip", {"readme": b""})
    with pytest.raises(KeyError, match="train.tsv"):
        load("sst2")


def test_sets_of_the_form_of_ag_news(shared):
    files = {f"dbpedia_csv/{n}.csv": table(rows(c, 14)) for n, c in (("train", 140), ("test", 28))}
    files["dbpedia_csv/classes.txt"] = "\n".join(f"Kind{label}" for label in range(14)).encode()
    make_tar(shared / "dbpedia_csv_10k.tgz", files)
    data = load("dbpedia")
    assert data.num_classes == 14
    assert (data.class_names[0], data.class_names[13]) == ("Kind0", "Kind13")
    assert words(data, data.test)[13] == ["title13", "class13", "row13"]


def imdb(count: int = 40) -> list[list]:
    half = count // 2
    names = ("negative", "positive")
    return [["review", "sentiment"]] + [
        [f"{names[i % 2]} film<br />{'train' if i < half else 'test'} number{i}", names[i % 2]]
        for i in range(count)
    ]


@pytest.mark.parametrize("form", ["csv", "zip", "tar"])
def test_imdb_in_each_form(shared, form):
    (shared / "imdb").mkdir()
    if form == "csv":  # as seed 000 calls it
        (shared / "IMDB_Dataset.csv").write_bytes(table(imdb()))
    elif form == "zip":
        make_zip(shared / "imdb" / "IMDB Dataset.csv.zip", {"IMDB Dataset.csv": table(imdb())})
    else:
        files = {"aclImdb/train/unsup/0_0.txt": b"\xff", "aclImdb/README": b"x"}
        for i, (text, label) in enumerate(imdb()[1:]):
            half = "train" if i < 20 else "test"
            files[f"aclImdb/{half}/{label[:3]}/{i}_7.txt"] = text.encode()
        make_tar(shared / "aclImdb_v1.tar.gz", files)
    data = load("imdb")
    assert data.describe().startswith("imdb: 18 train, 2 validation, 20 test; 2 classes;")
    assert data.class_names == ("negative", "positive")
    for part in (data.train, data.validation, data.test):
        for text, label in zip(words(data, part), part.y.tolist(), strict=True):
            assert text[0] == data.class_names[label] or text[0] == "<unk>"
    assert all("test" not in text for text in words(data, data.train))
    assert all("train" not in text for text in words(data, data.test))


def test_sst2_takes_quotes_as_they_are_and_dev_as_test(shared):
    train = "sentence\tlabel\n" + "".join(f'row{i} a "good film \t{i % 2}\n' for i in range(20))
    dev = 'sentence\tlabel\n"bad film\t0\nfine film\t1\n'
    files = {"SST-2/train.tsv": train.encode(), "SST-2/dev.tsv": dev.encode()}
    (shared / "glue").mkdir()
    make_zip(shared / "glue" / "SST-2.zip", files | {"SST-2/original/train.tsv.txt": b""})
    data = load("sst2")
    assert (len(data.train), len(data.validation), len(data.test)) == (18, 2, 2)
    assert data.test.y.tolist() == [0, 1]
    assert words(data, data.test) == [["<unk>", "film"], ["<unk>", "film"]]
