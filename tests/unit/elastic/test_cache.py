"""The store: never a wrong hit, whatever happens to files, disks and writers."""

import errno
import os
import shutil
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
import torch

from alkit.elastic import store as store_module
from alkit.elastic.cache import Cache
from alkit.elastic.store import VALID, WRITING, Store, StoreError
from tests.unit.elastic.helpers import images, make_bert, make_vit, texts, train


def made(folder: Path, **options) -> Store:
    values = {"layers": 2, "samples": 6, "shape": (3, 2)} | options
    return Store.create(folder, **values)


def test_what_is_written_is_read(tmp_path):
    store = made(tmp_path / "s")
    rows = torch.tensor([4, 1])
    features = torch.randn(2, 3, 2)
    slots = store.slots_of(rows)
    assert not store.valid(slots).any()
    assert store.write(slots, features) == features.nbytes
    other = Store.open(tmp_path / "s")  # as another process does
    assert other.valid(other.slots_of(torch.arange(6))).tolist() == [0, 1, 0, 0, 1, 0]
    assert torch.equal(other.read(slots), features)
    shutil.rmtree(tmp_path / "s")  # as an old generation is
    assert torch.equal(other.read(slots), features)


def test_slots_are_valid_only_if_they_were_finished(tmp_path):
    store = made(tmp_path / "s")
    slots = store.slots_of(torch.tensor([2]))
    store.states[slots] = WRITING  # a writer was killed here
    assert not store.valid(slots).any()
    store, rows = made(tmp_path / "v", variants=2), torch.arange(6)
    store.write(store.slots_of(rows, 1), torch.ones(6, 3, 2))
    assert not store.valid(store.slots_of(rows, 0)).any()
    assert store.valid(store.slots_of(rows, 3)).all()  # epoch 3 has variant 1


def test_a_store_that_is_there_is_another_job_s(tmp_path):
    made(tmp_path / "s")
    with pytest.raises(StoreError, match="no feature store of 0 MiB"):
        made(tmp_path / "s")  # never shared, never overwritten


def test_without_a_disk_that_can_be_written_training_goes_on(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store_module.os, "posix_fallocate", full)
    with pytest.raises(StoreError, match="No space left on device.*switch the cache off"):
        made(tmp_path / "s")
    assert not (tmp_path / "s").exists()
    _goes_on(caplog, "No space left")
    monkeypatch.undo()
    caplog.clear()
    path = tmp_path / "file"
    path.touch()
    _goes_on(caplog, "Not a directory", cache_folder=str(path))


def _goes_on(caplog, said, **options):
    """Without a store, and with the results that a store would not have changed; warns once."""
    run = {"epochs": 4, "batch": 8}
    found = train(make_vit(), images(), **run, **options)
    warned = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert len(warned) == 1
    assert "training goes on" in warned[0]
    assert said in warned[0]
    assert [said in line for line in found.lines].count(True) == 1
    assert not found.history.cached.any()
    assert found.history.hits.sum() == 0
    without = train(make_vit(), images(), cache=False, **run)
    assert torch.equal(found.losses, without.losses)


def test_a_run_leaves_no_file(tmp_path):
    train(make_vit(), images(), epochs=3, batch=8, cache_folder=str(tmp_path))
    assert not list(tmp_path.iterdir())


def cache_of(network, data, folder, frozen=2) -> Cache:
    network.freeze(frozen)
    cache = Cache(network, data.inputs, folder)
    cache.make(0, frozen, samples=len(data))
    cache.join(0)
    return cache


@pytest.mark.parametrize(("make", "data"), [(make_vit, images), (make_bert, texts)])
def test_part_of_a_batch_is_there(make, data, tmp_path):
    network, data = make(), data()
    cache = cache_of(network, data, tmp_path)
    cache.features(torch.tensor([3, 5, 7]))
    cache.settle()
    rows = torch.tensor([5, 6, 3, 8])
    found, expected = cache.features(rows), network.prefix(data.inputs(rows))
    if isinstance(expected, torch.Tensor):
        found, expected = (found,), (expected,)
    for own, other in zip(found, expected, strict=True):
        # the batch's size may change the last bits in double precision
        torch.testing.assert_close(own, other, rtol=0, atol=1e-13)
    counters = cache.taken_counters()
    assert (counters.hits, counters.misses) == (2, 5)
    cache.close()


def test_rows_that_were_read_ahead_or_are_in_no_order_are_not_confused(tmp_path):
    network, data = make_vit(), images()
    cache = cache_of(network, data, tmp_path)
    rows, others = torch.tensor([1, 2]), torch.tensor([3, 4])
    for each in (rows, others):
        cache.features(each)
    cache.settle()
    cache.read_ahead(rows)
    assert torch.equal(cache.features(others), network.prefix(data.x[others]))
    cache.read_ahead(rows)
    assert torch.equal(cache.features(rows), network.prefix(data.x[rows]))
    cache.close()
    # Every sample's features are its own: rows in random batches, some seen, some not.
    cache = cache_of(network, data, tmp_path / "other")
    expected = network.prefix(data.x)
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = torch.from_numpy(rng.choice(24, 7, replace=False))
        torch.testing.assert_close(cache.features(rows), expected[rows], rtol=0, atol=1e-13)
    assert (cache.now.states == VALID).sum() <= 24
    cache.close()


def test_training_goes_on_when_writing_fails(tmp_path, caplog):
    network, data = make_vit(), images()
    cache = cache_of(network, data, tmp_path)
    failed: Future[int] = Future()
    failed.set_exception(OSError("the disk is gone"))
    cache.writing.append(failed)
    rows = torch.tensor([1, 2])
    for _ in range(3):
        assert torch.equal(cache.features(rows), network.prefix(data.x[rows]))
    cache.settle()
    assert [r.message for r in caplog.records].count(
        "the feature store fails (the disk is gone): training goes on without it"
    ) == 1
    assert cache.now is None
    cache.close()
