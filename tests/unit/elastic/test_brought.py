"""What users bring to elastic training: blocks, ties, what they froze; and what is refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alkit
from alkit.elastic import Network
from alkit.elastic.settings import Settings
from tests.make import labelled
from tests.unit.elastic.helpers import SETTINGS, images, make_vit, train

X, Y = labelled(250, 8)


def fit(model, **options):
    return alkit.fit(model, (X, Y), method="elastic", progress=False, **options)


def maps(*sizes):
    torch.manual_seed(0)
    return [nn.Linear(low, high) for low, high in zip(sizes, sizes[1:], strict=False)]


def test_layers_freeze_one_by_one_if_it_is_asked_for():
    assert fit(maps(8, 8, 8, 8, 3), epochs=3).details.layouts[-1].frozen == 0
    blocks = maps(8, 8, 8, 8, 8, 3)
    blocks[0].bias.requires_grad_(False)
    record = fit(blocks, freeze="schedule", epochs=3)
    frozen = record.details.layouts[-1].frozen
    assert 0 < frozen == record.model.frozen
    # blocks learn on as they came
    learning = [own.requires_grad for each in blocks for own in each.parameters()]
    assert learning == [True, False, *[True] * 8]
    alkit.fit(record.model, (X, Y), epochs=1, progress=False)
    active = [all(p.requires_grad for p in unit.parameters()) for unit in record.model.units]
    assert active == [False] * (1 + frozen) + [True] * (4 - frozen)


def changed(change, **options):
    def call():
        network = make_vit()
        change(network)
        train(network, images(), SETTINGS, **options)

    return call


def tied(network):
    network.units[7].f.out_proj.weight = network.units[1].f.out_proj.weight


def tied_later(network):
    """Tie units that lie in one stage as long as nothing is frozen."""
    layouts = network.planner(Settings(budget=1e-9), devices=2, batch=8)
    first, later = (layouts.at(frozen).bounds[0][1] for frozen in (0, 3))
    assert later > first
    network.units[first].norm.weight = network.units[later].norm.weight


def thawed(network):
    network.freeze(2)
    network.freeze(1)


def own_loss(scores, y):
    return F.cross_entropy(scores, y)


REFUSED = [
    (changed(thawed), "freezing goes one way"),
    (lambda: Network([nn.Identity()] * 5, 2, None), "give an embedding, 2 units a layer"),
    (changed(id, alpha=1.0), "alpha is 1.0: give a share between 0 and 1, both excluded"),
    (changed(tied, workers=2), "stages 0 and 1 share a parameter .*out_proj.weight.*untie"),
    (changed(tied, ranks=2), "stages 0 and 1 share a parameter"),
    (changed(tied_later, workers=2, budget=1e-9), "share a parameter"),
    (lambda: fit(maps(8, 8, 3), freeze="schedule"), "freeze is given, and of 2 blocks.*give three"),
    (lambda: fit(Network(maps(8, 8, 3), 0, None), loss=nn.MSELoss()), "the network has its own"),
    (lambda: fit(maps(8, 8, 3), loss=own_loss, micro=4), "does not say what it is over"),
    (lambda: fit(maps(8, 8, 3), loss=own_loss, workers=2, stages=1), "not say what it is over"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_would_be_wrong_in_silence_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
