"""Image sets, from made archives of the official form."""

import gzip
import io
import os
import pickle
import struct

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torchvision.transforms import Compose, PILToTensor, Resize

from alkit.base import paths
from alkit.data.datasets import load
from alkit.data.parts import DataSet

from .test_archives import make_tar, make_zip

WNIDS = ["n03", "n01", "n02"]


@pytest.fixture(autouse=True)
def checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "root", lambda: tmp_path)
    monkeypatch.setenv("ALKIT_DATA", str(tmp_path / "shared"))
    (tmp_path / "shared").mkdir()
    return tmp_path


def jpeg(seed: int, mode: str = "RGB") -> bytes:
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (4, 4, 3) if mode == "RGB" else (4, 4), dtype=np.uint8)
    image = Image.fromarray(blocks).resize((64, 64), Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG")
    return buffer.getvalue()


def tiny(per_class: int = 10) -> dict[str, bytes]:
    """Files of tiny ImageNet with three classes; one image of each is grey."""
    files = {
        "wnids.txt": "\n".join(WNIDS).encode(),
        "words.txt": b"n01\tgoldfish, Carassius auratus\nn02\tnewt\nn03\tcat\nn99\tother\n",
    }
    lines = []
    for label, wnid in enumerate(WNIDS):
        for i in range(per_class):
            name = f"train/{wnid}/images/{wnid}_{i}.JPEG"
            files[name] = jpeg(100 * label + i, "L" if i == 1 else "RGB")
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b""
        for i in range(2):
            number = 2 * i + 7 * label
            files[f"val/images/val_{number}.JPEG"] = jpeg(1000 + number)
            lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t62\t62\n")
    files["val/val_annotations.txt"] = "".join(lines).encode()
    return {f"tiny-imagenet-200/{name}": content for name, content in files.items()}


def zipped(checkout, files):
    return make_zip(checkout / "shared" / "tiny-imagenet-200.zip", files)


def all_images(data: DataSet) -> set[bytes]:
    return {x.numpy().tobytes() for part in (data.train, data.validation) for x in part.x}


def test_tiny_imagenet_holds_the_images_as_torchvision_would(checkout):
    files = tiny()
    make_zip(checkout / "shared" / "tiny-imagenet-200_3of200.zip", files)
    data = load("tiny_imagenet", seed=1)
    assert data.class_names == ("cat", "goldfish", "newt")
    assert (len(data.train), len(data.validation), len(data.test)) == (27, 3, 6)
    assert torch.bincount(data.validation.y).tolist() == [1, 1, 1]
    assert data.test.y.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.train.x.dtype == torch.uint8
    assert data.train.x.shape == (27, 3, 32, 32)
    assert data.train.mean == (0.4802, 0.4481, 0.3975)
    assert data.train.std == (0.2770, 0.2691, 0.2821)
    theirs = Compose([Resize(32), PILToTensor()])
    expected = {
        theirs(Image.open(io.BytesIO(content)).convert("RGB")).numpy().tobytes()
        for name, content in files.items()
        if "/train/" in name and name.endswith(".JPEG")
    }
    assert all_images(data) == expected
    x, _ = next(iter(data.test.batches(6)))
    assert x.dtype == torch.float32


def test_tiny_imagenet_is_the_same_in_each_order_and_its_test_has_no_labels(checkout):
    zipped(checkout, tiny())
    expected = load("tiny_imagenet")
    zipped(checkout, dict(reversed(tiny().items())) | {"t/test/images/test_0.JPEG": jpeg(1)})
    got = load("tiny_imagenet")
    assert torch.equal(got.train.x, expected.train.x)
    assert torch.equal(got.test.x, expected.test.x)
    assert torch.equal(got.train.y, expected.train.y)


def test_size_and_seed_are_options(checkout):
    zipped(checkout, tiny())
    assert load("tiny_imagenet", size=64).train.x.shape[-1] == 64
    one, other = (load("tiny_imagenet", seed=seed) for seed in (1, 2))
    assert not torch.equal(one.validation.x, other.validation.x)
    assert all_images(one) == all_images(other)


PICTURE = "train/n01/images/n01_3.JPEG"


@pytest.mark.parametrize(
    ("name", "content"),
    [(PICTURE, b"no image"), (PICTURE, jpeg(1)[:400]), ("wnids.txt", None), ("wnids.txt", b"")],
)
def test_a_damaged_archive_is_no_data_set(checkout, name, content):
    files = tiny()
    files.pop(f"tiny-imagenet-200/{name}")
    if content is not None:
        files[f"tiny-imagenet-200/{name}"] = content
    zipped(checkout, files)
    with pytest.raises((ValueError, OSError, KeyError)):
        load("tiny_imagenet")


def batch(labels: list[int], key: bytes = b"labels", seed: int = 0, **odd: object) -> bytes:
    data = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    content = {key: labels, b"data": data, b"filenames": [b"x"] * len(labels)}
    return pickle.dumps(content | {k.encode(): v for k, v in odd.items()}, protocol=3)


TEN = [i % 10 for i in range(40)]
NAMES = [f"class {i}".encode() for i in range(10)]


def cifar10(**replaced: bytes) -> dict[str, bytes]:
    files = {
        "batches.meta": pickle.dumps({b"label_names": NAMES}, protocol=3),
        "data_batch_1": batch(TEN),
        "data_batch_3": batch(TEN, seed=1),
        "test_batch": batch(TEN[:20], seed=2),
        "readme.html": b"",
    } | replaced
    return {f"cifar-10-batches-py/{name}": content for name, content in files.items()}


def test_cifar10_reads_the_batches_that_are_there(checkout):
    make_tar(checkout / "shared" / "cifar-10-python_2.tar.gz", cifar10())
    data = load("cifar10")
    assert (len(data.train), len(data.validation), len(data.test)) == (70, 10, 20)
    assert data.class_names == tuple(f"class {i}" for i in range(10))
    assert data.test.mean == (0.4914, 0.4822, 0.4465)
    assert data.test.std == (0.2023, 0.1994, 0.2010)
    content = pickle.loads(cifar10()["cifar-10-batches-py/test_batch"], encoding="bytes")
    rows = torch.from_numpy(content[b"data"]).reshape(-1, 3, 32, 32)
    assert torch.equal(data.test.x, rows)
    assert data.test.y.tolist() == content[b"labels"]


def test_cifar100_takes_the_fine_labels(checkout):
    labels = list(range(100)) * 10
    files = {
        "meta": pickle.dumps({b"fine_label_names": [b"c%d" % i for i in range(100)]}, protocol=3),
        "train": batch(labels, b"fine_labels", coarse_labels=[0] * 1000),
        "test": batch(labels[:100], b"fine_labels"),
    }
    files = {f"cifar-100-python/{name}": content for name, content in files.items()}
    make_tar(checkout / "shared" / "cifar-100-python.tar.gz", files)
    data = load("cifar100")
    assert (len(data.train), len(data.validation), data.num_classes) == (900, 100, 100)
    assert data.class_names[99] == "c99"
    assert data.train.std == (0.2675, 0.2565, 0.2761)


class Evil:
    def __reduce__(self) -> tuple:
        return (os.system, ("touch escaped",))


class Codec:
    def __reduce__(self) -> tuple:
        import codecs

        return (codecs.encode, ("x", "rot13"))


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (Evil(), r"posix.system is refused"),
        (Codec(), "_codecs.encode is refused"),
        (io.BytesIO(b"x"), "_io.BytesIO is refused"),
    ],
)
def test_a_pickle_of_anything_else_is_refused(checkout, monkeypatch, odd, message):
    monkeypatch.chdir(checkout)
    files = cifar10(data_batch_1=batch(TEN, odd=odd))
    make_tar(checkout / "shared" / "cifar-10-python.tar.gz", files)
    with pytest.raises(pickle.UnpicklingError, match=message):
        load("cifar10")
    assert not (checkout / "escaped").exists()


NARROW = batch(TEN, data=np.zeros((40, 99), np.uint8))


@pytest.mark.parametrize(
    "replaced",
    [
        {"data_batch_1": batch([*TEN[:39], 10])},
        {"data_batch_1": batch([*TEN[:39], -1])},
        {"data_batch_1": batch(TEN[:39], data=np.zeros((40, 3072), np.uint8))},
        {"data_batch_1": batch(TEN)[:-500]},
        {"data_batch_1": b""},
        {"data_batch_1": batch(TEN, b"other")},
        {"data_batch_1": NARROW},
        {"batches.meta": None},
        {"test_batch": None},
    ],
)
def test_damaged_and_missing_batches_are_no_data_set(checkout, replaced):
    files = {name: content for name, content in cifar10(**replaced).items() if content is not None}
    make_tar(checkout / "shared" / "cifar-10-python.tar.gz", files)
    with pytest.raises((ValueError, KeyError, EOFError, pickle.UnpicklingError)):
        load("cifar10")


def idx(array: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


# ---- digits of post and streets


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


def test_made_sets(made, monkeypatch):
    found = load("mnist")
    assert (len(found.train), len(found.validation), len(found.test)) == (180, 20, 50)
    assert found.train.x.shape[1:] == (1, 28, 28)
    wide = load("mnist", side=32)
    assert (wide.test.x[:, :, 2:-2, 2:-2] == found.test.x).all()
    assert wide.test.x[:, :, 0].sum() == 0
    monkeypatch.setattr("torchvision.datasets.SVHN._check_integrity", lambda self: True)
    found = load("svhn")
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
def test_damaged_idx(made, content):
    path = made / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises((ValueError, RuntimeError)):
        load("mnist")
