"""Workers begin with the caller's state, so that all modes and executors end in the same bits."""

from functools import partial

import pytest
import torch
from torch import nn

from alkit import launch, train_epoch
from tests.helpers import dense_model, differences, made_batches, state_of, train_blocks
from tests.unit.delayed.nets import bits, mlp, momentum, vectors

AUTOCAST = partial(torch.autocast, "cpu", torch.bfloat16)


def _associated(mode="al", workers=None, executor="threads"):
    model = dense_model(4)
    record = train_epoch(model, made_batches(5), mode, workers, executor=executor)
    return state_of(model) | {"losses": record.losses}


def _delayed(method, executor="single"):
    options = {"method": method, "cuts": [2, 4], "optimizer": momentum, "executor": executor}
    record = train_blocks(mlp(dropout=0.3), nn.functional.cross_entropy, vectors(6), **options)
    return dict(enumerate([*bits(record.pipeline), record.losses]))


def _on_ranks():
    found = [_delayed(method, "ranks") for method in ("pipedream", "fr")]
    return [_associated("al_pipeline", 3, "ranks"), *found]


def test_the_bits_of_ranks_under_autocast():
    methods = ["pipedream", "fr"]
    plain = [_delayed(method) for method in methods]
    with AUTOCAST():
        expected = [_associated(), *map(_delayed, methods)]
        threads = [_associated(), *(_delayed(method, "threads") for method in methods)]
        ranks = launch(_on_ranks, ranks=3)
    assert all(map(differences, plain, expected[1:]))
    for other in (threads, *ranks):
        assert not any(map(differences, expected, other))


@pytest.mark.parametrize("mode", ["al", "al_pipeline"])
def test_autocast_around_an_epoch_follows_the_weights(mode):
    """Its cache would hand out casts of the first batch's weights; around each batch it can't."""
    around, within = dense_model(3), dense_model(3)
    with AUTOCAST():
        before = around.predict(made_batches(1)[0][0])
        train_epoch(around, made_batches(4), mode)
        assert not torch.equal(before, around.predict(made_batches(1)[0][0]))
    for batch in made_batches(4):
        with AUTOCAST():
            train_epoch(within, [batch], mode)
    assert not differences(state_of(around), state_of(within))
