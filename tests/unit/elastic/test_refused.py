"""What elastic training refuses, and in which words."""

import pytest
from torch import nn

from alkit.elastic import Network
from alkit.elastic.freeze import policy
from alkit.elastic.layout import Planner
from alkit.elastic.settings import Settings
from studies.elastic import ablation as study
from studies.elastic.rivals import rival
from studies.elastic.tasks import load_task
from tests.unit.elastic.helpers import SETTINGS, images, make_vit, train


def planner(**options):
    given = {"devices": 2, "batch": 8} | options
    chosen = Settings(stages=given.pop("stages", 2))
    return lambda: Planner(settings=chosen, sizes=[20.0] * 11, **given).at(0)


def rule(name, **options):
    return lambda: policy(name, **options)


def trained(**options):
    return lambda: train(make_vit(), images(), SETTINGS, **options)


def rivalled(**options):
    return lambda: rival(make_vit(), images(), settings=SETTINGS, **options)


def thawed():
    network = make_vit()
    network.freeze(2)
    network.freeze(1)


def frozen():
    network = make_vit()
    network.requires_grad_(False)
    train(network, images(), SETTINGS)


REFUSED = [
    (frozen, "there is nothing to train"),
    (planner(devices=6, stages=3), "stages is 3 and there are 6 devices: give a power"),
    (planner(stages=4), "there are 2 devices"),
    (planner(devices=6, stages=4), "divides them"),
    (planner(devices=4, stages=1, batch=3), "3 is too small for 4 replicas"),
    (planner(devices=16, stages=16), "16 groups for 11 blocks"),
    (trained(schedule="free"), "give 1f1b, gpipe"),
    (rule("schedule", alpha=0.0), "alpha is 0.0: give a share between 0 and 1"),
    (rule("gradnorm", alpha=1.0), "both excluded"),
    (rule("thaw"), "give none, schedule, gradnorm"),
    (lambda: Network([nn.Identity()] * 5, 2, None), "give an embedding, 2 units a layer"),
    (thawed, "freezing goes one way"),
    (trained(clip=0.0), "clip is 0"),
    (trained(ranks=2, stages=4), "stages is 4 and there are 2 devices"),
    (trained(ranks=3), "stages is 3 and there are 3 devices: give a power of two"),
    (rivalled(ranks=3), "among 3 ranks"),
    (lambda: study.measured("all", make_vit(), None, SETTINGS), "give 1f1b, freeze, .*ddp_fewer"),
    (lambda: load_task("letters"), "give digits, cifar10"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
