"""The real data that ALKIT_DATA points to: counts as its README states them, and word vectors."""

import io
import os
import zipfile
from functools import cache
from pathlib import Path

import pytest
import torch
from PIL import Image

from alkit.data import catalog, datasets, paths, text
from alkit.data.parts import DataSet

pytestmark = pytest.mark.realdata


@pytest.fixture(scope="module")
def realdata(tmp_path_factory):
    """Return a loader of real sets that keeps them, decodes anew, and skips what is not here."""
    folder = os.environ.get("ALKIT_DATA")
    if not folder:
        pytest.skip("ALKIT_DATA is not set: no real data")
    checkout = tmp_path_factory.mktemp("checkout")

    @cache
    def load(name: str) -> DataSet:
        return datasets.load(name)

    def load_or_skip(name: str) -> DataSet:
        if catalog.look(name)[0] == "missing":
            pytest.skip(f"ALKIT_DATA={folder} holds no {name}")
        return load(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "root", lambda: checkout)
        yield load_or_skip


def counts(part: datasets.Part) -> list[int]:
    return torch.bincount(part.y, minlength=part.num_classes).tolist()


def sizes(data: DataSet) -> tuple[int, int]:
    """Return how many samples are of the official training part, and of the test part."""
    return len(data.train) + len(data.validation), len(data.test)


def is_part(name: str) -> bool:
    """Say whether the set is the part that the README of the shared data describes."""
    return catalog.look(name)[0] == "part"


def test_ag_news(realdata):
    data = realdata("ag_news")
    if not is_part("ag_news"):
        pytest.skip("ALKIT_DATA holds another ag_news than the part with 9,995 rows")
    assert sizes(data) == (9_995, 7_600)
    assert [a + b for a, b in zip(counts(data.train), counts(data.validation), strict=True)] == [
        2_514,
        2_500,
        2_519,
        2_462,
    ]
    assert counts(data.validation) == [251, 250, 252, 246]
    assert counts(data.test) == [1_900] * 4
    assert data.note == "9,995 of 120,000 official training rows, 7,600 of 7,600 test rows"


def test_dbpedia(realdata):
    data = realdata("dbpedia")
    if not is_part("dbpedia"):
        pytest.skip("ALKIT_DATA holds another dbpedia than the part with 4,999 rows")
    assert sizes(data) == (4_999 - 1, 5_000)  # one text is a single word
    assert min(counts(data.test)) == 327
    assert max(counts(data.test)) == 382
    assert data.num_classes == 14
    assert data.note.startswith("4,999 of 560,000 official training rows, 5,000 of 70,000 test")


def test_sst2(realdata):
    data = realdata("sst2")
    assert "67,349 of 67,349 official training rows, 872 of 872 test rows" in data.note
    dropped = int(data.note.rpartition("; ")[2].split()[0].replace(",", ""))
    assert sizes(data) == (67_349 - dropped, 872)
    assert counts(data.test) == [428, 444]


def test_imdb(realdata):
    data = realdata("imdb")
    assert sizes(data) == (25_000, 25_000)
    assert counts(data.test) == [12_500, 12_500]
    assert counts(data.validation) == [1_250, 1_250]
    assert counts(data.train) == [11_250, 11_250]
    assert "not balanced" not in data.note
    assert data.train.x.shape[1] == 256
    assert len(data.vocabulary or ()) == 30_000


def test_cifar10(realdata):
    data = realdata("cifar10")
    if not is_part("cifar10"):
        pytest.skip("ALKIT_DATA holds another cifar10 than the part with one batch")
    assert sizes(data) == (10_000, 10_000)
    assert counts(data.test) == [1_000] * 10
    train = [a + b for a, b in zip(counts(data.train), counts(data.validation), strict=True)]
    assert (min(train), max(train)) == (937, 1_032)
    assert data.class_names[:2] == ("airplane", "automobile")
    x, _ = next(iter(data.train.batches(2_000)))
    assert float(x.mean().abs()) < 0.1


def test_cifar100(realdata):
    data = realdata("cifar100")
    if not is_part("cifar100"):
        pytest.skip("ALKIT_DATA holds another cifar100 than the part with 3,000 images")
    assert counts(data.train) == [27] * 100
    assert counts(data.validation) == [3] * 100
    assert counts(data.test) == [10] * 100
    assert data.class_names[0] == "apple"
    assert data.class_names == tuple(sorted(data.class_names))


def test_tiny_imagenet(realdata):
    data = realdata("tiny_imagenet")
    if not is_part("tiny_imagenet"):
        pytest.skip("ALKIT_DATA holds another tiny_imagenet than the part with 40 classes")
    assert data.num_classes == len(set(data.class_names)) == 40
    assert counts(data.train) == [450] * 40
    assert counts(data.validation) == [50] * 40
    assert counts(data.test) == [50] * 40
    x, _ = next(iter(data.train.batches(2_000)))
    assert float(x.mean().abs()) < 0.2
    assert 0.7 < float(x.std()) < 1.1


def test_grey_images_of_tiny_imagenet_have_three_equal_channels(realdata):
    data = realdata("tiny_imagenet")
    archive = catalog.find("tiny_imagenet")
    if not is_part("tiny_imagenet"):
        pytest.skip("ALKIT_DATA holds another tiny_imagenet than the part with 479 grey images")
    with zipfile.ZipFile(archive) as files:
        names = [name for name in files.namelist() if name.endswith(".JPEG")]
        modes = [Image.open(io.BytesIO(files.read(name))).mode for name in names]
    assert len(modes) == 22_000
    assert modes.count("L") == 479
    images = [part.x for part in (data.train, data.validation, data.test)]
    grey = sum(int((x == x[:, :1]).flatten(1).all(dim=1).sum()) for x in images)
    assert grey >= 479


def test_decoded_images_are_read_again(realdata):
    data = realdata("tiny_imagenet")
    again = datasets.load("tiny_imagenet")
    assert torch.equal(again.train.x, data.train.x)
    assert torch.equal(again.test.y, data.test.y)


@pytest.mark.parametrize(("name", "share"), [("imdb", 0.97), ("ag_news", 0.90), ("dbpedia", 0.65)])
def test_most_words_have_a_vector(realdata, name, share):
    data = realdata(name)
    try:
        path, member = text.find_vectors("glove.6B.50d")
    except FileNotFoundError:
        pytest.skip("ALKIT_DATA holds no glove.6B.50d")
    assert data.vocabulary
    vectors_VE, found = text.load_vectors(path, data.vocabulary, member=member, width=50)
    assert vectors_VE.shape == (len(data.vocabulary), 50)
    assert found / len(data.vocabulary) > share
    good = vectors_VE[data.vocabulary.encode(["good"])[0]]
    with zipfile.ZipFile(Path(path)) as archive, archive.open(member or "") as lines:
        line = next(line for line in lines if line.startswith(b"good "))
    torch.testing.assert_close(good, torch.tensor([float(v) for v in line.split()[1:]]))
