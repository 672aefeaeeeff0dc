"""What elastic training refuses, and in which words."""

import pytest
import torch
from torch import nn
from torch.nn import MSELoss

import alkit
from alkit.elastic import Network
from alkit.elastic.layout import Planner
from alkit.elastic.settings import Settings
from studies.elastic import ablation as study
from studies.elastic.tasks import load_task
from tests.unit.elastic.helpers import SETTINGS, images, make_vit, train


def planned(**options):
    given = {"devices": 2, "batch": 8} | options
    chosen = Settings(stages=given.pop("stages", 2))
    return lambda: Planner(settings=chosen, sizes=[20.0] * 11, **given).at(0)


def changed(change, **options):
    def call():
        network = make_vit()
        change(network)
        train(network, images(), SETTINGS, **options)

    return call


def trained(**options):
    return changed(id, **options)


def thawed(network):
    network.freeze(2)
    network.freeze(1)


def frozen(network):
    network.requires_grad_(False)


def tied(network):
    network.units[7].f.out_proj.weight = network.units[1].f.out_proj.weight


def tied_later(network):
    """Tie units that lie in one stage as long as nothing is frozen."""
    layouts = network.planner(Settings(budget=1e-9), devices=2, batch=8)
    first, later = (layouts.at(frozen).bounds[0][1] for frozen in (0, 3))
    assert later > first
    network.units[first].norm.weight = network.units[later].norm.weight


def own_loss(scores, y):
    return nn.functional.cross_entropy(scores, y)


BLOCKS = [nn.Linear(6, 6), nn.Linear(6, 6)]


def fitted(model, **options):
    data = torch.zeros(8, 6), torch.zeros(8).long()
    return lambda: alkit.fit(model, data, method="elastic", progress=False, **options)


REFUSED = [
    (changed(frozen), "there is nothing to train"),
    (planned(devices=6, stages=3), "stages is 3 and there are 6 devices: give a power"),
    (planned(stages=4), "there are 2 devices"),
    (planned(devices=6, stages=4), "divides them"),
    (planned(devices=4, stages=1, batch=3), "3 is too small for 4 replicas"),
    (planned(devices=16, stages=16), "16 groups for 11 blocks"),
    (trained(schedule="free"), "give 1f1b, gpipe"),
    (trained(alpha=0.0), "alpha is 0.0: give a share between 0 and 1"),
    (trained(alpha=1.0), "both excluded"),
    (trained(freeze="thaw"), "give none, schedule, gradnorm"),
    (lambda: Network([nn.Identity()] * 5, 2, None), "give an embedding, 2 units a layer"),
    (changed(thawed), "freezing goes one way"),
    (trained(clip=0.0), "clip is 0"),
    (trained(ranks=2, stages=4), "stages is 4 and there are 2 devices"),
    (trained(ranks=3), "stages is 3 and there are 3 devices: give a power of two"),
    (changed(tied, workers=2), "stages 0 and 1 share a parameter .*out_proj.weight.*untie"),
    (changed(tied, ranks=2), "stages 0 and 1 share a parameter"),
    (changed(tied_later, workers=2, budget=1e-9), "share a parameter"),
    (fitted(BLOCKS, freeze="schedule"), "freeze is given, and of 2 blocks.*give three or"),
    (fitted(Network(BLOCKS, 0, None), loss=MSELoss()), "the network has its own"),
    (fitted(BLOCKS, loss=own_loss, micro=4), "does not say what it is over"),
    (fitted(BLOCKS, loss=own_loss, workers=2, stages=1), "does not say what it is over"),
    (lambda: study.measured("all", make_vit(), None, SETTINGS), "give 1f1b, freeze, .*ddp_fewer"),
    (lambda: load_task("letters"), "give digits, cifar10"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
