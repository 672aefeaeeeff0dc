"""MNIST, SVHN and ImageNet32: made files of official forms, damaged ones, and the real MNIST."""

import gzip
import pickle
import struct

import numpy as np
import pytest
from scipy.io import savemat

from alkit.data import archives, datasets


def idx(array: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setenv("ALKIT_DATA", str(tmp_path))
    draw = np.random.default_rng(0)
    for home, part, count in (
        ("MNIST", "train", 200), ("MNIST", "t10k", 50),
    ):  # fmt: skip
        folder = tmp_path / home / "raw"
        folder.mkdir(parents=True, exist_ok=True)
        x = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        y = (np.arange(count) % 10).astype(np.uint8)
        for name, array in (("images-idx3", x), ("labels-idx1", y)):
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(idx(array)))
    folder = tmp_path / "svhn"
    folder.mkdir()
    for part, count in (("train", 100), ("test", 30)):
        x = draw.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        y = (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]
        savemat(folder / f"{part}_32x32.mat", {"X": x, "y": y})
    return tmp_path


def test_made_sets(made):
    found = datasets.load("mnist")
    assert (len(found.train), len(found.validation), len(found.test)) == (180, 20, 50)
    assert found.train.x.shape[1:] == (1, 28, 28)
    wide = datasets.load("mnist", side=32)
    assert (wide.test.x[:, :, 2:-2, 2:-2] == found.test.x).all()
    assert wide.test.x[:, :, 0].sum() == 0
    with pytest.raises(ValueError, match="give 28, or 32"):
        datasets.load("mnist", side=30)
    found = datasets.load("svhn")
    assert (len(found.train), len(found.validation), len(found.test)) == (90, 10, 30)
    # the owners' tens are zeros
    assert sorted(set(found.test.y.tolist())) == list(range(10))
    assert found.test.y[9] == 0


@pytest.mark.parametrize(
    "content",
    [
        b"PK",
        idx(np.zeros((2, 3), np.uint8)),
        idx(np.zeros((2, 2, 2), np.uint8))[:-1],
        bytes((0, 0, 8, 3)) + struct.pack(">3I", *[2**32 - 1] * 3),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_damaged_idx(made, content, packed):
    path = made / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    path.unlink()
    path = path if packed else path.with_suffix("")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises((ValueError, IndexError)):
        datasets.load("mnist")


def test_unpacked_files_are_read_and_a_file_that_unpacks_to_more_is_cut(made, monkeypatch):
    expected = datasets.load("mnist")
    for path in (made / "MNIST" / "raw").iterdir():
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    found = datasets.load("mnist")
    assert (found.train.x == expected.train.x).all()
    assert (found.test.y == expected.test.y).all()
    for path in (made / "MNIST" / "raw").iterdir():  # as copies have it
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert (datasets.load("mnist").train.x == expected.train.x).all()
    monkeypatch.setattr(archives, "MOST", 1000)
    with pytest.raises(ValueError, match="reshape"):
        datasets.load("mnist")


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


def repacked(folder):
    for half, count in (("out_data_train", 1000), ("out_data_val", 5)):
        (folder / half).mkdir()
        for number in range(1, 11):
            name = f"train_data_batch_{number}"
            (folder / half / name).write_bytes(batch(count, 5 * number - 5))


@pytest.mark.parametrize("form", [official, repacked])
def test_both_forms(folder, form):
    form(folder)
    found = datasets.load("imagenet32", validation=0.1)
    assert (len(found.train), len(found.validation), len(found.test)) == (9000, 1000, 50)
    assert found.train.x.shape[1:] == (3, 32, 32)
    assert (int(found.test.y.min()), int(found.test.y.max())) == (0, 49)
    assert found.num_classes == 1000


def test_some_of_the_files_or_none(folder):
    with pytest.raises(FileNotFoundError, match="image-net.org gives after a login"):
        datasets.load("imagenet32")
    official(folder, files=2)
    with pytest.raises(FileNotFoundError, match="train_data_batch_3"):
        datasets.load("imagenet32")
    assert len(datasets.load("imagenet32", files=2, validation=0.5).train) == 1000
    (folder / "val_data").unlink()
    with pytest.raises(FileNotFoundError, match="val_data"):
        datasets.load("imagenet32", files=2)


@pytest.mark.parametrize(
    "content",
    [
        b"no pickle",
        pickle.dumps({"data": 3}),
        pickle.dumps(np.random.default_rng),
        pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [0]}, protocol=2),
    ],
)
def test_damage_is_no_data_set(folder, content):
    official(folder, files=1)
    (folder / "train_data_batch_1").write_bytes(content)
    with pytest.raises((ValueError, KeyError, pickle.UnpicklingError)):
        datasets.load("imagenet32", files=1)
