"""The real data that ALKIT_DATA points to: counts as its README states them, and word vectors."""

import hashlib
import io
import os
import re
import zipfile
from functools import cache
from pathlib import Path

import pytest
import torch
from PIL import Image

from alkit.data import catalog, datasets, paths, text
from alkit.data.parts import DataSet, Part

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
        if name not in catalog.EMBEDDED and catalog.look(name)[0] == "missing":
            pytest.skip(f"ALKIT_DATA={folder} holds no {name}")
        return load(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "root", lambda: checkout)
        yield load_or_skip


def counts(*parts: Part) -> list[int]:
    """Return how many samples of each class the parts have together."""
    return torch.bincount(torch.cat([part.y for part in parts])).tolist()


def only_part(name: str) -> None:
    """Skip unless the set is the part that the README of the shared data describes."""
    if catalog.look(name)[0] != "part":
        pytest.skip(f"ALKIT_DATA holds another {name} than the part that was counted")


# of the parts that lie in the shared data: by class, of the official training part, held out, test
COUNTS = {
    "ag_news": ([2_514, 2_500, 2_519, 2_462], [251, 250, 252, 246], [1_900] * 4),
    "cifar100": ([30] * 100, [3] * 100, [10] * 100),
    "tiny_imagenet": ([500] * 40, [50] * 40, [50] * 40),
}
TEXTS = {
    "ag_news": "9,995 of 120,000 official training rows, 7,600 of 7,600 test rows",
    "dbpedia": "4,999 of 560,000 official training rows, 5,000 of 70,000 test rows",
    "sst2": "67,349 of 67,349 official training rows, 872 of 872 test rows",
    "imdb": "25,000 of 25,000 official training rows, 25,000 of 25,000 test rows",
}


# of names, words, samples and labels: records on a set stay comparable while these stay
DIGESTS = {
    "digits": "7129d312a6b44043",
    "pydocs": "7ae9be5ad5c748c1",
    "mnist": "48771e856a92de22",
    "cifar10": "d0f0ebdccb16fb34",
    "cifar100": "961e3cff9aa9169c",
    "tiny_imagenet": "babc1998bb16ceba",
    "ag_news": "83d94fc20a72b4c8",
    "dbpedia": "6b1f566023e7013a",
    "imdb": "a5644f288bc87461",
    "sst2": "60e1cee68c94a4b7",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_each_set_has_the_same_bits(realdata, name):
    data = realdata(name)
    if name in ("ag_news", "dbpedia", "cifar10", "cifar100", "tiny_imagenet"):
        only_part(name)
    words = data.vocabulary and data.vocabulary.words
    found = hashlib.sha256(repr((data.class_names, words)).encode())
    for part in (data.train, data.validation, data.test):
        found.update(part.x.numpy().tobytes())
        found.update(part.y.numpy().tobytes())
    assert found.hexdigest()[:16] == DIGESTS[name]


@pytest.mark.parametrize("name", COUNTS)
def test_classes_are_as_many_as_was_said(realdata, name):
    data = realdata(name)
    only_part(name)
    found = counts(data.train, data.validation), counts(data.validation), counts(data.test)
    assert found == COUNTS[name]


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_as_many_as_was_said(realdata, name):
    data = realdata(name)
    if name in ("ag_news", "dbpedia"):
        only_part(name)
    assert data.note.startswith(TEXTS[name])
    said = re.search(r"([\d,]+) of at most one word dropped", data.note)
    dropped = int(said[1].replace(",", "")) if said else 0
    official = int(TEXTS[name].split()[0].replace(",", ""))
    assert len(data.train) + len(data.validation) == official - dropped
    if name == "dbpedia":
        assert (dropped, data.num_classes) == (1, 14)
        assert (min(counts(data.test)), max(counts(data.test))) == (327, 382)
    if name == "sst2":
        assert counts(data.test) == [428, 444]
    if name == "imdb":
        parts = (data.train, data.validation, data.test)
        assert list(map(counts, parts)) == [[11_250] * 2, [1_250] * 2, [12_500] * 2]
        assert "not balanced" not in data.note
        assert (data.train.x.shape[1], len(data.vocabulary)) == (256, 30_000)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "tiny_imagenet"])
def test_images_have_their_names_and_scale(realdata, name):
    data = realdata(name)
    only_part(name)
    x, _ = next(iter(data.train.batches(2_000)))
    assert float(x.mean().abs()) < 0.2
    assert 0.7 < float(x.std()) < 1.3
    if name == "cifar10":
        both = counts(data.train, data.validation)
        assert (sum(both), min(both), max(both)) == (10_000, 937, 1_032)
        assert counts(data.test) == [1_000] * 10
        assert data.class_names[:2] == ("airplane", "automobile")
        assert float(x.mean().abs()) < 0.1
    if name == "cifar100":
        assert data.class_names == tuple(sorted(data.class_names))
        assert data.class_names[0] == "apple"
    assert len(set(data.class_names)) == data.num_classes


def test_grey_images_of_tiny_imagenet_have_three_equal_channels(realdata):
    data = realdata("tiny_imagenet")
    archive = catalog.find("tiny_imagenet")
    only_part("tiny_imagenet")
    with zipfile.ZipFile(archive) as files:
        names = [name for name in files.namelist() if name.endswith(".JPEG")]
        modes = [Image.open(io.BytesIO(files.read(name))).mode for name in names]
    assert len(modes) == 22_000
    assert modes.count("L") == 479
    images = [part.x for part in (data.train, data.validation, data.test)]
    grey = sum(int((x == x[:, :1]).flatten(1).all(dim=1).sum()) for x in images)
    assert grey >= 479


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
