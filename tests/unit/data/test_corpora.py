"""Text sets, from made archives of the official form."""

import csv
import io

import pytest
import torch

from alkit.base import paths
from alkit.data.datasets import load
from alkit.data.parts import DataSet, Part

from .test_archives import make_folder, make_tar, make_zip

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
    }


def words(data: DataSet, part: Part) -> list[list[str]]:
    assert data.vocabulary
    texts = [[data.vocabulary.words[i] for i in row] for row in part.x.tolist()]
    return [[word for word in text if word != "<pad>"] for text in texts]


@pytest.mark.parametrize("form", ["archive", "folder", "files"])
def test_ag_news_in_each_form(shared, form):
    files = ag_news()
    if form == "archive":
        make_tar(shared / "ag_news_csv_train40.tgz", files)
    else:
        home = "ag_news_csv/" if form == "files" else ""
        make_folder(shared / "ag_news", {n.removeprefix(home): c for n, c in files.items()})
    data = load("ag_news")
    assert data.describe() == (
        "ag_news: 36 train, 4 validation, 8 test; 4 classes; texts of up to 3 tokens;"
        f" vocabulary {2 + 36 * 2 + 4};"
        " 40 of 120,000 official training rows, 8 of 7,600 test rows"
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
    whole = load("ag_news", stop_words=False)
    assert words(whole, whole.test)[1] == "title1 class1 row1 and more of it".split()
    short = load("ag_news", max_len=2, max_size=7)
    assert short.test.x.shape[1] == 2
    assert len(short.vocabulary or ()) == 7
    with pytest.raises(TypeError, match="max_length"):
        load("ag_news", max_length=3)


def test_short_texts_are_dropped_from_training_alone_which_makes_the_vocabulary(shared):
    train = [*rows(40), [1, "", ""], [2, "", "The of"], [3, "", "one"]]
    make_tar(shared / "ag_news_csv.tgz", ag_news(train, [*rows(4), [2, "", "..."]]))
    data = load("ag_news")
    assert len(data.train) + len(data.validation) == 40
    assert "43 of 120,000" in data.note
    assert "3 of at most one word dropped" in data.note
    assert data.test.x[4].tolist() == [1] + [0] * (data.test.x.shape[1] - 1)
    make_tar(shared / "ag_news_csv.tgz", ag_news(test=[[1, "unheard", "of"]]))
    data = load("ag_news")
    assert data.vocabulary
    known = set(data.vocabulary.words)
    assert "unheard" not in known
    seen = {word for text in words(data, data.train) for word in text}
    assert known == seen | {"<pad>", "<unk>"}
    assert any("<unk>" in text for text in words(data, data.validation))


def test_the_split_is_a_function_of_the_seed_and_seeds_share_their_test(shared):
    make_tar(shared / "ag_news_csv.tgz", ag_news())
    one, again, other = (load("ag_news", seed=s) for s in (1, 1, 2))
    assert torch.equal(one.train.x, again.train.x)
    assert words(one, one.train) != words(other, other.train)
    small = load("ag_news", train_size=20, test_size=4, validation=0.2)
    assert (len(small.train), len(small.validation), len(small.test)) == (16, 4, 4)
    assert torch.bincount(small.train.y).tolist() == [4] * 4
    assert torch.bincount(small.test.y).tolist() == [1] * 4
    with pytest.raises(ValueError, match="9 samples asked, there are 8"):
        load("ag_news", test_size=9)
    make_tar(shared / "ag_news_csv.tgz", ag_news(rows(80), rows(40)))
    first, second = (load("ag_news", seed=seed, train_size=60, test_size=8) for seed in (0, 1))
    assert words(first, first.train) != words(second, second.train)
    texts = zip(words(first, first.test), words(second, second.test), strict=True)
    pairs = [pair for one, other in texts for pair in zip(one, other, strict=True)]
    assert all(a == b or "<unk>" in (a, b) for a, b in pairs)


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
        make_folder(shared, {"IMDB Dataset.csv": content})
    with pytest.raises(ValueError, match=r"\w"):
        load(name)


def test_a_header_blank_lines_and_a_byte_order_mark_do_no_harm(shared):
    make_tar(shared / "ag_news_csv.tgz", ag_news())
    expected = load("ag_news")
    files = ag_news()
    for name in ("ag_news_csv/train.csv", "ag_news_csv/test.csv"):
        lines = b"\xef\xbb\xbfClass Index,Title,Description\r\n\n" + files[name]
        files[name] = lines.replace(b'"4"', b'\n"4"') + b"\n\n"
    make_tar(shared / "ag_news_csv.tgz", files)
    got = load("ag_news")
    assert torch.equal(got.train.x, expected.train.x)
    assert torch.equal(got.test.y, expected.test.y)


def test_missing_files_and_sets_without_texts_are_named(shared):
    path = make_tar(shared / "ag_news_csv.tgz", {"ag_news_csv/train.csv": table(rows(9))})
    with pytest.raises(ValueError, match="ag_news_csv.tgz holds no test.csv"):
        load("ag_news")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"alkit.datasets.fetch\('ag_news'\) downloads it"):
        load("ag_news")
    make_zip(shared / "SST-2.zip", {"readme": b""})
    with pytest.raises(ValueError, match="SST-2.zip holds no train.tsv"):
        load("sst2")


def test_sets_of_the_form_of_ag_news(shared):
    files = {f"dbpedia_csv/{n}.csv": table(rows(c, 14)) for n, c in (("train", 140), ("test", 28))}
    make_tar(shared / "dbpedia_csv_10k.tgz", files)
    data = load("dbpedia")
    assert data.num_classes == 14
    assert (data.class_names[0], data.class_names[13]) == ("Company", "WrittenWork")
    assert words(data, data.test)[13] == ["title13", "class13", "row13"]
    assert data.note == "140 of 560,000 official training rows, 28 of 70,000 test rows"


def imdb(count: int = 40) -> list[list]:
    half = count // 2
    names = ("negative", "positive")
    return [["review", "sentiment"]] + [
        [f"{names[i % 2]} film<br />{'train' if i < half else 'test'} number{i}", names[i % 2]]
        for i in range(count)
    ]


@pytest.mark.parametrize("form", ["csv", "seed", "zip", "tar", "folder"])
def test_imdb_in_each_form(shared, form):
    if form == "csv":
        make_folder(shared / "imdb", {"IMDB Dataset.csv": table(imdb())})
    elif form == "seed":  # as seed 000 calls it
        make_folder(shared, {"IMDB_Dataset.csv": table(imdb())})
    elif form == "zip":
        (shared / "imdb").mkdir()
        make_zip(shared / "imdb" / "IMDB Dataset.csv.zip", {"IMDB Dataset.csv": table(imdb())})
    else:
        files = {"aclImdb/train/unsup/0_0.txt": b"\xff", "aclImdb/README": b"x"}
        for i, (text, label) in enumerate(imdb()[1:]):
            half = "train" if i < 20 else "test"
            files[f"aclImdb/{half}/{label[:3]}/{i}_7.txt"] = text.encode()
        if form == "tar":
            make_tar(shared / "aclImdb_v1.tar.gz", files)
        else:
            make_folder(shared, files)
    data = load("imdb")
    assert data.describe().startswith("imdb: 18 train, 2 validation, 20 test; 2 classes;")
    assert data.class_names == ("negative", "positive")
    for part in (data.train, data.validation, data.test):
        for text, label in zip(words(data, part), part.y.tolist(), strict=True):
            assert text[0] == data.class_names[label] or text[0] == "<unk>"
    assert all("test" not in text for text in words(data, data.train))
    assert all("train" not in text for text in words(data, data.test))
    assert "20 of 25,000 official training rows, 20 of 25,000 test rows" in data.note
    assert ("row order" in data.note) == (form not in ("tar", "folder"))
    if form == "csv":
        rows = imdb()
        rows[1][1] = "positive"
        make_folder(shared / "imdb", {"IMDB Dataset.csv": table(rows)})
        assert "not balanced, so hardly the official halves" in load("imdb").note


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
    assert data.note == "20 of 67,349 official training rows, 2 of 872 test rows"
