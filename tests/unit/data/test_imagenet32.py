"""ImageNet32: made files of both published forms, missing ones and damaged ones."""

import pickle

import numpy as np
import pytest

from alkit.data import datasets


def batch(count: int, first: int = 0, text_keys: bool = True) -> bytes:
    labels = [1 + (first + at) % 1000 for at in range(count)]
    draw = np.random.default_rng(first)
    content = {"data": draw.integers(0, 256, (count, 3072), dtype=np.uint8), "labels": labels}
    if not text_keys:
        content = {key.encode(): value for key, value in content.items()}
    return pickle.dumps(content, protocol=2)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ALKIT_DATA", str(tmp_path))
    home = tmp_path / "imagenet32"
    home.mkdir()
    return home


def official(folder, files=10):
    for number in range(1, files + 1):
        (folder / f"train_data_batch_{number}").write_bytes(batch(1000, text_keys=number % 2))
    (folder / "val_data").write_bytes(batch(50))


def test_the_official_form(folder):
    official(folder)
    found = datasets.load("imagenet32", validation=0.1)
    assert (len(found.train), len(found.validation), len(found.test)) == (9000, 1000, 50)
    assert found.train.x.shape[1:] == (3, 32, 32)
    assert (int(found.test.y.min()), int(found.test.y.max())) == (0, 49)
    assert found.num_classes == 1000


def test_the_repacked_form(folder):
    for half, count in (("out_data_train", 1000), ("out_data_val", 10)):
        (folder / half).mkdir()
        for number in range(1, 11):
            name = f"train_data_batch_{number}"
            (folder / half / name).write_bytes(batch(count, number))
    found = datasets.load("imagenet32", validation=0.1)
    assert (len(found.train), len(found.test)) == (9000, 100)


def test_some_of_the_files(folder):
    official(folder, files=2)
    with pytest.raises(ValueError, match=r"incomplete: there is no .*train_data_batch_3.*files="):
        datasets.load("imagenet32")
    assert len(datasets.load("imagenet32", files=2, validation=0.5).train) == 1000
    with pytest.raises(ValueError, match="files is 11: give 1 to 10"):
        datasets.load("imagenet32", files=11)
    (folder / "val_data").unlink()
    with pytest.raises(ValueError, match="there is no .*val_data"):
        datasets.load("imagenet32", files=2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no pickle", "damaged"),
        (pickle.dumps({"data": 3}), "no batch of 32 x 32 images"),
        (pickle.dumps([1]), "no batch of 32 x 32 images"),
        (pickle.dumps(np.random.default_rng), "is refused: only arrays are read"),
        (
            pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [0]}, protocol=2),
            "labels are 0 to 0, not 1 to 1000",
        ),
    ],
)
def test_damage_is_named(folder, content, words):
    official(folder, files=1)
    (folder / "train_data_batch_1").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        datasets.load("imagenet32", files=1)


def test_nothing_here(folder):
    with pytest.raises(FileNotFoundError, match="image-net.org gives after a login"):
        datasets.load("imagenet32")
