"""The real data that ALKIT_DATA points to: the bits that its sets had when they were counted."""

import hashlib

import pytest

from alkit.base import paths
from alkit.data import datasets

pytestmark = pytest.mark.realdata


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
# those of which a part lies in the shared data, as its README counts it
PARTS = {
    "ag_news": "ag_news_csv_train9995",
    "dbpedia": "dbpedia_csv_10k",
    "cifar10": "cifar-10-python_batch1",
    "cifar100": "cifar-100-python_train3000",
    "tiny_imagenet": "tiny-imagenet-200_40of200",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_each_set_has_the_same_bits(name, tmp_path, monkeypatch):
    """So classes are as many, and pictures and words as they were when they were counted."""
    monkeypatch.setattr(paths, "root", lambda: tmp_path)  # no checkout's own data
    try:
        data = datasets.load(name)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    if name in PARTS and not datasets.find(name).stem.startswith(PARTS[name]):
        pytest.skip(f"ALKIT_DATA holds another {name} than the part that was counted")
    parts, words = (data.train, data.validation, data.test), data.vocabulary or None
    assert {part.num_classes for part in parts} == {data.num_classes} == {len(data.class_names)}
    found = hashlib.sha256(repr((data.class_names, words)).encode())
    for part in parts:
        found.update(part.x.numpy().tobytes())
        found.update(part.y.numpy().tobytes())
    assert found.hexdigest()[:16] == DIGESTS[name]
