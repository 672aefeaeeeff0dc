"""Ranks agree before they train, and a model of a rank is a module like others.

For the bits of torchrun's ranks see `tests/conformance/test_kept.py`.
"""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import alkit
from alkit.engine.launch import launch
from tests import fitted


def _kept_at(paths: list[Path]) -> bool:
    """Train with a file a rank, as of machines with a disk each; say whether it had been done."""
    path = paths[dist.get_rank()]
    return fitted.fit("pipedream", checkpoint=path).losses is None


def test_a_rank_of_another_number_brings_the_run_along(tmp_path):
    """Who is rank 0 after a restart may have no file, and another one has."""
    disks = [tmp_path / "first", tmp_path / "second"]
    assert launch(_kept_at, disks, ranks=2) == [False, False]
    assert [disk.exists() for disk in disks] == [True, False]
    assert launch(_kept_at, disks[::-1], ranks=2) == [True, True]


def _saved(path: Path) -> str:
    record = fitted.fit("pipedream", cuts=[2, 4])
    if dist.get_rank() == 0:
        alkit.save(record, path)
    return fitted.digest(record)


def test_a_rank_is_a_module(tmp_path):
    alone = fitted.fit("pipedream", cuts=[2, 4])
    assert launch(_saved, tmp_path / "net", ranks=3) == [fitted.digest(alone)] * 3
    loaded = alkit.load(tmp_path / "net", fitted.blocks())
    assert loaded.state_dict().keys() == alone.model.state_dict().keys()


def _own_models() -> list[str]:
    """Return what each method says of ranks whose models differ."""
    torch.manual_seed(dist.get_rank())
    x, said = torch.ones(16, 8), []
    for method in fitted.METHODS:
        blocks = [nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)]
        parts = [(x, torch.arange(16) % 3)] * 3
        own = {"batch_size": 8, "progress": False}
        with pytest.raises(RuntimeError) as told:
            alkit.fit(blocks, *parts, method=method, **own)
        said.append(str(told.value))
    return said


def test_ranks_with_models_of_their_own_are_told():
    for said in launch(_own_models, ranks=2):
        assert all("1 of 2 ranks differ from rank 0 in" in each for each in said), said
