"""The store: never a wrong hit, whatever happens to files, disks and ranks."""

import errno
import os
import re
import tempfile
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from alkit.base import tree
from alkit.elastic.cache import Cache
from alkit.engine.messages import Group
from tests.unit.elastic.helpers import images, make_bert, make_vit, texts, train


def cache_of(network, data, frozen=2) -> Cache:
    network.freeze(frozen)
    cache = Cache(network, data.x, Group(alone=True), wanted=True)
    cache.follow()
    return cache


def same(found, expected):
    for own, other in zip(tree.tensors(found), tree.tensors(expected), strict=True):
        # the batch's size may change the last bits in double precision
        torch.testing.assert_close(own, other, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("make", "data"), [(make_vit, images), (make_bert, texts)])
def test_part_of_a_batch_is_there(make, data):
    network, data = make(), data()
    cache = cache_of(network, data)
    cache.features(torch.tensor([3, 5, 7]))
    rows = torch.tensor([5, 6, 3, 8])
    same(cache.features(rows), network.prefix(cache.inputs(rows)))
    assert cache.counts == {"hits": 2, "advanced": 0, "misses": 5}
    # every sample's features are its own: rows in random batches, some seen, some not
    expected, rng = network.prefix(data.x), np.random.default_rng(0)
    for _ in range(20):
        rows = torch.from_numpy(rng.choice(24, 7, replace=False))
        chosen = tree.map_tensors(lambda own, rows=rows: own[rows], expected)
        same(cache.features(rows), chosen)
    assert cache.now.valid.all()


def test_advanced_features_are_those_of_all_units():
    network, data = make_vit(), images()
    rows, cache = torch.arange(len(data)), cache_of(network, data, 1)
    for frozen in (1, 3, 4):
        network.freeze(frozen)
        cache.follow()
        for again in range(2):
            cache.counts.clear()
            assert torch.equal(cache.features(rows), network.prefix(data.x))
            where = "hits" if again else "misses" if frozen == 1 else "advanced"
            assert {name: count for name, count in cache.counts.items() if count} == {where: 24}


@pytest.mark.parametrize("said", ["No space left", "Not a directory"])
def test_without_a_disk_that_can_be_written_training_goes_on(said, tmp_path, monkeypatch, caplog):
    """With the results that a store would not have changed; warns once."""
    run = {"epochs": 4, "batch_size": 8}
    without = train(make_vit(), images(), cache=False, **run)
    (tmp_path / "file").touch()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "posix_fallocate", Mock(side_effect=full))
    place = tmp_path if said == "No space left" else tmp_path / "file"
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    found = train(make_vit(), images(), **run)
    (warned,) = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert re.search(f"training goes on: .*{said}", warned)
    assert not found.history.cached.any()
    assert torch.equal(found.losses, without.losses)
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]
