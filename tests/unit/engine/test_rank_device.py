"""A device a rank, and what joins ranks, on machines that are made up here."""

import pytest
import torch

from alkit.engine import device, rank_device
from alkit.engine.rank_device import backend_for, own_device


@pytest.fixture(params=[["cpu", "cuda:0", "cuda:1"]], ids=str)
def here(request, monkeypatch):
    for module in (device, rank_device):
        monkeypatch.setattr(module, "available", lambda: request.param)
    return request.param


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("cuda", ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]),
        ("auto", ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]),
        ("cuda:1", ["cuda:1"] * 4),
        (["cuda:1", "cpu"], ["cuda:1", "cpu", "cuda:1", "cpu"]),
        (torch.device("cpu"), ["cpu"] * 4),
    ],
    ids=str,
)
def test_ranks_take_devices_in_turn(given, found, here, monkeypatch):
    for rank, expected in enumerate(found):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert own_device(given) == torch.device(expected)


@pytest.mark.parametrize("here", [["cpu"]], indirect=True)
def test_without_an_accelerator(here, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert own_device("auto") == torch.device("cpu")
    with pytest.raises(ValueError, match="unknown device 'cuda': this machine has cpu"):
        own_device("cuda")


@pytest.mark.parametrize(
    ("given", "ranks", "expected"),
    [
        (None, 2, "gloo"),
        ("cpu", 1, "gloo"),
        ("cuda", 2, "cpu:gloo,cuda:nccl"),
        ("auto", 1, "cpu:gloo,cuda:nccl"),
        (["cuda:1", "cuda:0"], 2, "cpu:gloo,cuda:nccl"),
        ("cuda", 3, "gloo"),  # two ranks share a GPU, which NCCL refuses
        ("cuda:1", 2, "gloo"),
        (["cuda:0", "cpu"], 2, "gloo"),
    ],
    ids=str,
)
def test_what_joins_ranks(given, ranks, expected, here):
    assert backend_for(given, ranks) == expected


@pytest.mark.parametrize("here", [["cpu", "privateuseone:0"]], indirect=True)
def test_a_kind_that_torch_knows_no_backend_of_is_joined_by_gloo(here):
    assert backend_for("auto", 1) == "gloo"
