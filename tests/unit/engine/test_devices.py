"""A device a layer; a device a rank, on machines that are made up here."""

from functools import partial

import pytest
import torch

from alkit import set_device, train_epoch
from alkit.data.given import Loader
from alkit.data.parts import DataSet
from alkit.engine import device
from alkit.engine.trainer import Plan
from tests.helpers import dense_model, differences, made_batches, state_of
from tests.make import bp_model

TURNS = ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
GIVEN = [
    ("cuda", TURNS),
    ("auto", TURNS),
    ("cuda:1", ["cuda:1"] * 4),
    (["cuda:1", "cpu"], ["cuda:1", "cpu", "cuda:1", "cpu"]),
    (torch.device("cpu"), ["cpu"] * 4),
]


@pytest.mark.parametrize(("given", "found"), GIVEN, ids=str)
def test_ranks_take_devices_in_turn(given, found, monkeypatch):
    monkeypatch.setattr(device, "available", lambda: ["cpu", "cuda:0", "cuda:1"])
    plan = partial(Plan, DataSet("data", Loader([])), ranks=4)
    for rank, expected in enumerate(found):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert plan(device=given).own_device == torch.device(expected)

    monkeypatch.setattr(device, "available", lambda: ["cpu"])
    assert plan(device="auto").own_device == torch.device("cpu")
    with pytest.raises(ValueError, match="unknown device 'cuda': this machine has cpu"):
        _ = plan(device="cuda").own_device


def test_one_device_a_layer_and_the_same_bits():
    placed, plain = dense_model(3), dense_model(3)
    train_epoch(placed, made_batches(2), "al")
    assert set_device(placed, ["cpu", "cpu", torch.device("cpu")]) is placed
    train_epoch(placed, made_batches(2), "al_fm")
    for _ in range(2):
        train_epoch(plain, made_batches(2), "al")
    assert not differences(state_of(placed), state_of(plain))
    set_device(bp_model(), ["cpu"] * 3)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (["cpu"] * 2, "for 3 layers: give one a layer"),
        (["cpu"] * 4, "for 3 layers: give one a layer"),
        ("cpu", "for 3 layers: give one a layer"),
        (["cpu", "cuda:99", "cpu"], "this machine has cpu"),
    ],
)
def test_devices_that_are_not_there_or_of_another_number(devices, message):
    with pytest.raises(ValueError, match=message):
        set_device(dense_model(3), devices)
