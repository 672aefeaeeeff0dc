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


@pytest.mark.parametrize(
    ("frame", "options", "match"),
    [
        (table(), {"text": "body"}, "no column 'body': it has 'text', 'label'; say which"),
        (table().assign(label="no"), {}, "label has one value, 'no': give rows of two classes"),
        (table().replace("no", None), {}, "row 0 has no text or no label"),
        (
            table(),
            {"test": table(4).replace("no", "new")},
            r"labels of test that train lacks: \['new'\]",
        ),
    ],
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


def test_a_folder_that_does_not_fit(tmp_path):
    with pytest.raises(ValueError, match="1 folders: wanted one a class"):
        from_folder(pictures(tmp_path / "a", classes=("cat",)))
    (tmp_path / "b").mkdir()
    (pictures(tmp_path / "b", classes=("cat", "dog")) / "owl").mkdir()
    with pytest.raises(ValueError, match="owl has no images"):
        from_folder(tmp_path / "b")
    (tmp_path / "b" / "owl" / "x.png").write_text("no image")
    with pytest.raises(ValueError, match="no readable image"):
        from_folder(tmp_path / "b")
    pictures(tmp_path / "c", parts=("train",))
    pictures(tmp_path / "c", parts=("test",), classes=("cat", "eel"))
    with pytest.raises(ValueError, match=r"have not the same classes: \['dog', 'eel'\]"):
        from_folder(tmp_path / "c")


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


def test_a_picture_that_would_fill_the_memory_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match=r"0.png is no readable image \(Image size \(240 pixels\)"):
        from_folder(pictures(tmp_path))


def test_sixteen_bits_are_scaled_to_eight(tmp_path):
    for name, value in (("dark", 5000), ("light", 50000)):
        (tmp_path / name).mkdir()
        for at in range(10):
            Image.fromarray(np.full((8, 8), value, np.uint16)).save(tmp_path / name / f"{at}.png")
    made = from_folder(tmp_path, size=8)
    assert made.train.x.unique().tolist() == [19, 194]
    for at in range(10):  # however dark all of a picture is
        Image.fromarray(np.full((8, 8), 200, np.uint16)).save(tmp_path / "dark" / f"{at}.png")
        (tmp_path / "light" / f"{at}.png").rename(tmp_path / "light" / f"{at}.TIF")
    for path in (tmp_path / "light").iterdir():
        Image.fromarray(np.full((8, 8), 50000, np.uint16)).save(path)
    assert from_folder(tmp_path, size=8).train.x.unique().tolist() == [0, 194]


def test_numbers_are_sorted_as_numbers_and_not_stays():
    frame = pd.DataFrame({"text": [f"word{at % 12} is not here" for at in range(240)]})
    made = from_frame(frame.assign(label=[at % 12 for at in range(240)]))
    assert made.class_names == tuple(map(str, range(12)))
    pair = pd.DataFrame({"text": ["this is good", "this is not good"] * 20, "label": [0, 1] * 20})
    lengths = {int((from_frame(pair).train.x[at] > 0).sum()) for at in range(8)}
    assert lengths == {3, 4}
    with pytest.raises(ValueError, match="row 39 has 3.5 in text, which is no text"):
        from_frame(pd.DataFrame({"text": ["good film"] * 39 + [3.5], "label": [0, 1] * 20}))


def test_classes_that_are_numbers_are_in_order_wherever_they_come_from(tmp_path):
    numbers = [at % 12 for at in range(24)]
    x = np.zeros((24, 3), np.float32)
    for y in (np.array(numbers, dtype=object), np.array(list(map(str, numbers)))):
        assert as_splits((x, y)).train.y.tolist() == numbers
    texts = [f"the word{at} is here" for at in range(240)]
    frame = pd.DataFrame({"text": texts, "label": [str(at % 12) for at in range(240)]})
    names = tuple(map(str, range(12)))
    assert from_frame(frame).class_names == names
    assert from_folder(pictures(tmp_path, classes=names), size=4).class_names == names


def test_a_class_may_have_the_name_of_a_part_and_a_training_part_is_wanted(tmp_path):
    made = from_folder(pictures(tmp_path / "a", classes=("bus", "test", "train")), size=8)
    assert made.class_names == ("bus", "test", "train")
    pictures(tmp_path / "b", ("val", "Test"))
    with pytest.raises(ValueError, match="b has val, Test and no folder train"):
        from_folder(tmp_path / "b")


def test_a_class_that_training_would_lose_is_refused():
    frame = pd.DataFrame({"text": ["a good film", "bad"] * 20, "label": ["yes", "no"] * 20})
    with pytest.raises(ValueError, match="no training text of two words or more in class no"):
        from_frame(frame)
