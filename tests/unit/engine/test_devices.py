"""A device a rank, on machines that are made up here."""

from functools import partial

import pytest
import torch

from alkit.data.given import Loader
from alkit.data.parts import DataSet
from alkit.engine import device
from alkit.engine.trainer import Plan

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
