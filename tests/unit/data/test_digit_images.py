"""MNIST and SVHN: made files of the official form, damaged ones, and the real MNIST."""

import gzip
import struct

import numpy as np
import pytest
from scipy.io import savemat

from alkit.data import catalog, datasets
from alkit.data.digit_images import read_idx


def idx(array: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("ALKIT_DATA", str(tmp_path))
    draw = np.random.default_rng(0)
    for home, part, count in (
        ("MNIST", "train", 200), ("MNIST", "t10k", 50),
        ("FashionMNIST", "train", 100), ("FashionMNIST", "t10k", 30),
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


def test_made_sets(data):
    found = datasets.load("mnist")
    assert (len(found.train), len(found.validation), len(found.test)) == (180, 20, 50)
    assert found.train.x.shape[1:] == (1, 28, 28)
    wide = datasets.load("mnist", side=32)
    assert (wide.test.x[:, :, 2:-2, 2:-2] == found.test.x).all()
    assert wide.test.x[:, :, 0].sum() == 0
    with pytest.raises(ValueError, match="give 28, or 32"):
        datasets.load("mnist", side=30)
    found = datasets.load("fashion_mnist")
    assert (found.name, len(found.train), len(found.test)) == ("fashion_mnist", 90, 30)
    assert found.class_names[9] == "ankle boot"
    found = datasets.load("svhn")
    assert (len(found.train), len(found.validation), len(found.test)) == (90, 10, 30)
    # the owners' tens are zeros
    assert sorted(set(found.test.y.tolist())) == list(range(10))
    assert found.test.y[9] == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PK", "is no IDX file"),
        (idx(np.zeros((2, 3), np.uint8)), "is no IDX file of bytes in 3 dimensions"),
        (idx(np.zeros((2, 2, 2), np.uint8))[:-1], "its header says"),
        (bytes((0, 0, 8, 3)) + struct.pack(">3I", *[2**32 - 1] * 3), "its header says"),
    ],
)
def test_damaged_idx(tmp_path, content, words):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_idx(path, 3)


def test_damaged_sets(data):
    (data / "MNIST/raw/t10k-labels-idx1-ubyte.gz").write_bytes(b"\x1f\x8b damaged")
    with pytest.raises(ValueError, match="damaged"):
        datasets.load("mnist")
    (data / "MNIST/raw/t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(ValueError, match="incomplete"):
        datasets.load("mnist")
    (data / "svhn/test_32x32.mat").write_bytes(b"MATLAB 5.0")
    with pytest.raises(ValueError, match="damaged or no SVHN"):
        datasets.load("svhn")


@pytest.mark.realdata
def test_real_mnist():
    if catalog.look("mnist")[1] is None:
        pytest.skip("MNIST is not here: alkit data get mnist")
    found = datasets.load("mnist")
    assert len(found.train) + len(found.validation) == 60_000
    assert len(found.test) == 10_000
    assert found.train.x.float().mean() / 255 == pytest.approx(0.1307, abs=2e-3)
