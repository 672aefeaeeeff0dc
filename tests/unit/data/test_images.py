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

from alkit.data.datasets import load
from tests.unit.data.made import packed

pytestmark = pytest.mark.usefixtures("shared")
WNIDS = ["n03", "n01", "n02"]


def sizes(data):
    return len(data.train), len(data.validation), len(data.test)


def jpeg(seed, mode="RGB"):
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (4, 4, 3) if mode == "RGB" else (4, 4), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(blocks).resize((64, 64), Image.Resampling.BILINEAR).save(buffer, "JPEG")
    return buffer.getvalue()


def tiny(per_class=10):
    """Files of tiny ImageNet with three classes; one image of each is grey."""
    files, lines = {"wnids.txt": "\n".join(WNIDS).encode(), "test/images/test_0.JPEG": b""}, []
    files["words.txt"] = b"n01\tgoldfish, Carassius auratus\nn02\tnewt\nn03\tcat\nn99\tother\n"
    for label, wnid in enumerate(WNIDS):
        for i in range(per_class):
            name = f"train/{wnid}/images/{wnid}_{i}.JPEG"
            files[name] = jpeg(100 * label + i, "L" if i == 1 else "RGB")
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b""
        for number in (7 * label, 2 + 7 * label):
            files[f"val/images/val_{number}.JPEG"] = jpeg(1000 + number)
            lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t62\t62\n")
    return files | {"val/val_annotations.txt": "".join(lines).encode()}


def all_images(data):
    return {x.numpy().tobytes() for part in (data.train, data.validation) for x in part.x}


def test_tiny_imagenet_holds_the_images_as_torchvision_would(shared):
    files = tiny()
    path = packed(shared / "tiny-imagenet-200_3of200.zip", files, "tiny-imagenet-200/")
    data = load("tiny_imagenet", seed=1)
    assert data.class_names == ("cat", "goldfish", "newt")
    assert sizes(data) == (27, 3, 6)
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
        if name.startswith("train/") and name.endswith(".JPEG")
    }
    assert all_images(data) == expected
    x, _ = next(iter(data.test.batches(6)))
    assert x.dtype == torch.float32
    other = load("tiny_imagenet", seed=2)
    assert not torch.equal(data.validation.x, other.validation.x)
    assert all_images(other) == expected
    # whatever the order of the files
    packed(path, dict(reversed(files.items())), "tiny-imagenet-200/")
    again = load("tiny_imagenet", seed=1)
    for one, two in ((data.train, again.train), (data.test, again.test)):
        assert torch.equal(one.x, two.x)
        assert torch.equal(one.y, two.y)
    assert load("tiny_imagenet", size=64).train.x.shape[-1] == 64


PICTURE = "train/n01/images/n01_3.JPEG"
ODD = [(PICTURE, b"no image"), (PICTURE, jpeg(1)[:400]), ("wnids.txt", None), ("wnids.txt", b"")]


@pytest.mark.parametrize(("name", "content"), ODD)
def test_a_damaged_archive_is_no_data_set(shared, name, content):
    files = {own: made for own, made in tiny().items() if own != name or content is not None}
    if content is not None:
        files[name] = content
    packed(shared / "tiny-imagenet-200.zip", files, "tiny-imagenet-200/")
    with pytest.raises((ValueError, OSError, KeyError)):
        load("tiny_imagenet")


def batch(labels, key=b"labels", seed=0, **odd):
    data = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    content = {key: labels, b"data": data, b"filenames": [b"x"] * len(labels)}
    return pickle.dumps(content | {k.encode(): v for k, v in odd.items()}, protocol=3)


TEN = [i % 10 for i in range(40)]


def cifar10(shared, **replaced):
    """Write a set of two batches out of five; return what they are made of."""
    files = {
        "batches.meta": pickle.dumps({b"label_names": [b"c%d" % i for i in range(10)]}, protocol=3),
        "data_batch_1": batch(TEN),
        "data_batch_3": batch(TEN, seed=1),
        "test_batch": batch(TEN[:20], seed=2),
        "readme.html": b"",
    } | replaced
    files = {name: own for name, own in files.items() if own is not None}
    packed(shared / "cifar-10-python_2.tar.gz", files, "cifar-10-batches-py/")
    return files


def test_cifar10_reads_the_batches_that_are_there(shared):
    files = cifar10(shared)
    data = load("cifar10")
    assert sizes(data) == (70, 10, 20)
    assert data.class_names == tuple(f"c{i}" for i in range(10))
    assert data.test.mean == (0.4914, 0.4822, 0.4465)
    assert data.test.std == (0.2023, 0.1994, 0.2010)
    content = pickle.loads(files["test_batch"], encoding="bytes")
    assert torch.equal(data.test.x, torch.from_numpy(content[b"data"]).reshape(-1, 3, 32, 32))
    assert data.test.y.tolist() == content[b"labels"]


def test_cifar100_takes_the_fine_labels(shared):
    labels = list(range(100)) * 10
    files = {
        "meta": pickle.dumps({b"fine_label_names": [b"c%d" % i for i in range(100)]}, protocol=3),
        "train": batch(labels, b"fine_labels", coarse_labels=[0] * 1000),
        "test": batch(labels[:100], b"fine_labels"),
    }
    packed(shared / "cifar-100-python.tar.gz", files, "cifar-100-python/")
    data = load("cifar100")
    assert (*sizes(data), data.num_classes) == (900, 100, 100, 100)
    assert data.class_names[99] == "c99"
    assert data.test.y.tolist() == labels[:100]
    assert data.train.std == (0.2675, 0.2565, 0.2761)


class Calls:
    """A pickle that calls a function where it is read."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def test_a_pickle_of_anything_else_is_refused(shared, monkeypatch):
    monkeypatch.chdir(shared)
    evil, codec = Calls(os.system, ("touch escaped",)), Calls(pickle.codecs.encode, ("x", "rot13"))
    for odd, said in ((evil, "posix.system"), (codec, "_codecs.encode"), (io.BytesIO(), "_io.Byt")):
        cifar10(shared, data_batch_1=batch(TEN, odd=odd))
        with pytest.raises(pickle.UnpicklingError, match=f"{said}.* is refused"):
            load("cifar10")
        assert not (shared / "escaped").exists()


BROKEN = [
    {"data_batch_1": batch([*TEN[:39], 10])},
    {"data_batch_1": batch([*TEN[:39], -1])},
    {"data_batch_1": batch(TEN[:39], data=np.zeros((40, 3072), np.uint8))},
    {"data_batch_1": batch(TEN)[:-500]},
    {"data_batch_1": b""},
    {"data_batch_1": batch(TEN, b"other")},
    {"data_batch_1": batch(TEN, data=np.zeros((40, 99), np.uint8))},
    {"batches.meta": None},
    {"test_batch": None},
]


@pytest.mark.parametrize("replaced", BROKEN)
def test_damaged_and_missing_batches_are_no_data_set(shared, replaced):
    cifar10(shared, **replaced)
    with pytest.raises((ValueError, KeyError, EOFError, pickle.UnpicklingError)):
        load("cifar10")


def idx(array):
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


@pytest.fixture
def mnist(shared):
    folder, draw = shared / "MNIST" / "raw", np.random.default_rng(0)
    folder.mkdir(parents=True)
    for part, count in (("train", 200), ("t10k", 50)):
        x = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        y = (np.arange(count) % 10).astype(np.uint8)
        for name, array in (("images-idx3", x), ("labels-idx1", y)):
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(idx(array)))
    return folder, x


def test_mnist_may_have_a_border(mnist):
    found, wide = load("mnist"), load("mnist", side=32)
    assert sizes(found) == (180, 20, 50)
    assert torch.equal(found.test.x[:, 0], torch.from_numpy(mnist[1]))
    assert found.test.y.tolist() == [*range(10)] * 5
    assert (wide.test.x[:, :, 2:-2, 2:-2] == found.test.x).all()
    assert wide.test.x[:, :, 0].sum() == 0


@pytest.mark.parametrize(
    "content",
    [
        b"PK",
        idx(np.zeros((2, 3), np.uint8)),
        idx(np.zeros((2, 2, 2), np.uint8))[:-1],
        bytes((0, 0, 8, 3)) + struct.pack(">3I", *[2**32 - 1] * 3),
    ],
)
def test_damaged_idx(mnist, content):
    (mnist[0] / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
    with pytest.raises((ValueError, RuntimeError)):
        load("mnist")


def test_tens_of_svhn_are_zeros(shared, monkeypatch):
    (shared / "svhn").mkdir()
    for part, count in (("train", 100), ("test", 30)):
        x = np.random.default_rng(0).integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        y = (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]
        savemat(shared / "svhn" / f"{part}_32x32.mat", {"X": x, "y": y})
    monkeypatch.setattr("torchvision.datasets.SVHN._check_integrity", lambda self: True)
    found = load("svhn")
    assert sizes(found) == (90, 10, 30)
    assert found.test.y.tolist() == [*range(1, 10), 0] * 3
