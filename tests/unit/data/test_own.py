"""A user's own data: a table of texts, a folder of images, a Dataset."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import alkit
from alkit.data.given import as_splits
from alkit.data.own import from_folder, from_frame

WORDS = "one two three four five six seven eight nine ten".split()


def table(rows=40):
    texts = [" ".join(WORDS[at % 7 : at % 7 + 3]) for at in range(rows)]
    return pd.DataFrame({"text": texts, "label": ["no", "yes"] * (rows // 2)})


def test_a_table_of_texts():
    data = from_frame(table(), max_len=5, validation=0.2)
    assert data.class_names == ("no", "yes")
    sizes = [len(part) for part in (data.train, data.validation, data.test)]
    assert sizes == [28, 8, 4]
    assert data.train.is_text
    given = from_frame(
        table().rename(columns={"text": "a"}), text="a", test=table(4).rename(columns={"text": "a"})
    )
    assert len(given.test) == 4
    pair = pd.DataFrame({"text": ["this is good", "this is not good"] * 20, "label": [0, 1] * 20})
    lengths = (from_frame(pair).train.x > 0).sum(1)  # the word not stays
    assert set(lengths.tolist()) == {3, 4}


NEW = table(4).replace("no", "new")
SHORT = pd.DataFrame({"text": ["a good film", "bad"] * 20, "label": ["yes", "no"] * 20})
NUMBER = pd.DataFrame({"text": ["good film"] * 39 + [3.5], "label": [0, 1] * 20})


@pytest.mark.parametrize(
    ("frame", "options", "match"),
    [
        (table(), {"text": "body"}, "no column 'body': it has 'text', 'label'; say which"),
        (table().assign(label="no"), {}, "label has one value, 'no': give rows of two classes"),
        (table().replace("no", None), {}, "row 0 has no text or no label"),
        (table(), {"test": NEW}, r"labels of test that train lacks: \['new'\]"),
        (SHORT, {}, "no training text of two words or more in class no"),
        (NUMBER, {}, "row 39 has 3.5 in text, which is no text"),
    ],
    ids=["column", "one class", "gaps", "new labels", "short texts", "a number"],
)
def test_a_table_that_does_not_fit(frame, options, match):
    with pytest.raises(ValueError, match=match):
        from_frame(frame, **options)


def pictures(home, parts=("",), classes=("cat", "dog"), count=10):
    for part in parts:
        for number, name in enumerate(classes):
            (home / part / name).mkdir(parents=True)
            for at in range(count):
                colour = (40 * at % 255, 200 * number, 10 + 60 * parts.index(part))
                Image.new("RGB", (20, 12), colour).save(home / part / name / f"{at}.png")
    return home


def test_a_folder_of_images(tmp_path):
    data = from_folder(pictures(tmp_path), size=16)
    assert data.class_names == ("cat", "dog")
    assert data.train.x.shape[1:] == (3, 16, 16)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [16, 2, 2]
    x = torch.cat([x for x, _ in data.train.batches(4)])
    assert x.dtype is torch.float32
    assert abs(float(x.mean())) < 0.5


@pytest.mark.parametrize(
    "names",
    [("train", "val", "test"), ("Training", "Testing"), ("train", "dev"), ("TRAIN", "valid")],
)
def test_parts_that_lie_apart_stay_apart_whatever_their_names(tmp_path, names):
    data = from_folder(pictures(tmp_path, names), size=8)
    assert data.class_names == ("cat", "dog")
    assert len(data.test if names[1] == "Testing" else data.validation) == 20
    if "test" in names:
        assert [len(part) for part in (data.train, data.validation, data.test)] == [20, 20, 20]
        assert data.test.mean == data.train.mean


def test_a_folder_that_does_not_fit(tmp_path, monkeypatch):
    def refused(folder, match):
        with pytest.raises(ValueError, match=match):
            from_folder(folder)

    refused(pictures(tmp_path / "a", classes=("cat",)), "1 folders: wanted one a class")
    (pictures(tmp_path / "b") / "owl").mkdir()
    refused(tmp_path / "b", "owl has no images")
    (tmp_path / "b" / "owl" / "x.png").write_text("no image")
    refused(tmp_path / "b", "no readable image")
    pictures(tmp_path / "c", parts=("train",))
    pictures(tmp_path / "c", parts=("test",), classes=("cat", "eel"))
    refused(tmp_path / "c", r"have not the same classes: \['dog', 'eel'\]")
    refused(pictures(tmp_path / "d", ("val", "Test")), "d has val, Test and no folder train")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # a picture that would fill the memory
    said = r"0.png is no readable image \(Image size \(240 pixels\)"
    refused(pictures(tmp_path / "e"), said)


def blocks(features):
    return [nn.Sequential(nn.Flatten(), nn.Linear(features, 8), nn.ReLU()), nn.Linear(8, 2)]


@pytest.mark.parametrize("method", ["bp", "al_pipeline", "ddg", "split"])
def test_the_one_face_takes_a_folder(tmp_path, method):
    folder = pictures(tmp_path)
    record = alkit.fit(blocks(3 * 32 * 32), folder, method=method, batch_size=4, progress=False)
    assert len(record.test_correct) == 2


def test_the_one_face_takes_a_table():
    from alkit.models.transformer import transformer

    data = from_frame(table())
    model = transformer(len(data.vocabulary), blocks=1, width=8, heads=2, ffn=8)
    record = alkit.fit(model, data, method="al_pipeline", batch_size=4, progress=False)
    assert len(record.test_correct) == len(data.test)
    assert as_splits(table()).num_classes == 2
    assert record.classes == data.class_names


def test_a_dataset_has_an_order_of_seed_and_epoch():
    samples = TensorDataset(torch.arange(10.0)[:, None], torch.arange(10) % 2)
    source = as_splits(samples).train
    orders = [
        torch.cat([x for x, _ in source.batches(4, seed=seed, epoch=epoch)]).flatten().tolist()
        for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))
    ]
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(10)) for order in orders)
    record = alkit.fit(blocks(1), samples, samples, method="bp", num_classes=2, progress=False)
    assert record.history.val_acc.notna().all()
    with pytest.raises(TypeError, match="DataLoader"):  # a stream needs one
        as_splits(type("Stream", (IterableDataset,), {"__iter__": lambda self: iter(())})())


# ---- as people have them


def test_what_systems_leave_is_left_out_and_links_are_followed_once(tmp_path):
    disk, home = pictures(tmp_path / "disk"), tmp_path / "set"
    for name in (".ipynb_checkpoints", "__MACOSX"):
        (disk / name).mkdir()
    (disk / "cat" / "._0.png").write_bytes(b"of a file system")
    home.mkdir()
    for name in ("cat", "dog"):
        (home / name).symlink_to(disk / name)
    (disk / "cat" / "again").symlink_to(disk / "cat")
    for folder in (disk, home):
        made = from_folder(folder)
        assert made.class_names == ("cat", "dog")
        assert sum(len(part) for part in (made.train, made.validation, made.test)) == 20


@pytest.mark.parametrize(("dark", "scaled"), [(5000, 19), (200, 0)])
def test_sixteen_bits_are_scaled_to_eight_however_dark_all_of_a_picture_is(tmp_path, dark, scaled):
    for name, value in (("dark/{}.png", dark), ("light/{}.TIF", 50000)):
        for at in range(10):
            path = tmp_path / name.format(at)
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(np.full((8, 8), value, np.uint16)).save(path)
    assert from_folder(tmp_path, size=8).train.x.unique().tolist() == [scaled, 194]


def test_classes_that_are_numbers_are_in_order_wherever_they_come_from(tmp_path):
    numbers = [at % 12 for at in range(24)]
    x = np.zeros((24, 3), np.float32)
    for y in (np.array(numbers, dtype=object), np.array(list(map(str, numbers)))):
        assert as_splits((x, y)).train.y.tolist() == numbers
    frame = pd.DataFrame({"text": [f"the word{at} is here" for at in range(240)]})
    named = ("bus", "test", "train")  # a class may have the name of a part
    assert from_folder(pictures(tmp_path / "a", classes=named), size=8).class_names == named
    names = tuple(map(str, range(12)))
    for kind in (int, str):
        label = [kind(at % 12) for at in range(240)]
        assert from_frame(frame.assign(label=label)).class_names == names
    assert from_folder(pictures(tmp_path / "b", classes=names), size=4).class_names == names
