"""What elastic training refuses, and in which words."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from alkit.elastic import Examples, Network, Recipe
from alkit.elastic.freeze import policy
from alkit.elastic.layout import Planner
from alkit.models.encoder import ViTSizes, vit
from studies.elastic import ablation as study
from studies.elastic.rivals import rival
from studies.elastic.tasks import load_task
from tests.unit.elastic.helpers import SETTINGS, images, make_vit, train


def planner(**options):
    given = {"devices": 2, "stages": 2, "batch": 8} | options
    return lambda: Planner([20.0] * 11, 4, **given).at(0)


def rule(name, **options):
    return lambda: policy(name, **options)


def recipe(**options):
    return lambda: Recipe(**options)


def trained(**options):
    return lambda: train(make_vit(), images(), SETTINGS, **options)


def rivalled(kind, **options):
    return lambda: rival(kind, make_vit(), images(), settings=SETTINGS, **options)


def thawed():
    network = make_vit()
    network.freeze(2)
    network.freeze(1)


REFUSED = [
    (planner(devices=6, stages=3), "stages is 3: give a power of two"),
    (planner(stages=4), "there are 2 devices"),
    (planner(devices=6, stages=4), "divides them"),
    (planner(devices=16, stages=16), "there are 11 units"),
    (planner(batch=0), "batch is 0"),
    (planner(partition="best"), "give minmax, greedy"),
    (planner(batch_policy="free"), "give fixed_global"),
    (planner(devices=4, stages=1, batch=6), "among 4 replicas"),
    (rule("schedule", alpha=0.0), "alpha is 0.0: give a share between 0 and 1"),
    (rule("gradnorm", alpha=1.0), "both excluded"),
    (rule("thaw"), "give none, schedule, gradnorm"),
    (rule("schedule", beta=1), "does not take these options"),
    (recipe(optimizer="lamb"), "give adamw or sgd"),
    (recipe(shape="step"), "give constant, linear, cosine"),
    (recipe(warmup=1.0), "give a share from 0"),
    (recipe(clip=0.0), "give a positive norm"),
    (recipe(lr=0.0), "lr must"),
    (recipe(momentum=1.0), "momentum from 0"),
    (
        lambda: train(make_vit(), replace(images(), y=images().y[:, None]), SETTINGS),
        r"does not take labels \(1, 1\) of torch.int64",
    ),
    (lambda: Network([nn.Identity()] * 5, 2, None), "give an embedding, 2 units a layer"),
    (thawed, "freezing goes one way"),
    (trained(batch=64, drop_last=True), "do not fill a batch of 64"),
    (trained(memory_budget=0, devices=2), "memory_budget is 0: give bytes"),
    (trained(memory_budget=0, ranks=2), "memory_budget is 0: give bytes"),
    (trained(ranks=2, stages=4), "stages is 4 and there are 2 devices"),
    (trained(ranks=3), "stages is 3: give a power of two"),
    (rivalled("dp"), "give ddp, .*, fsdp"),
    (rivalled("ddp", ranks=3), "among 3 ranks"),
    (lambda: study.measured("all", make_vit(), None, SETTINGS), "give 1f1b, freeze, .*ddp, .*fsdp"),
    (lambda: Examples(torch.zeros(3, 2), torch.zeros(2)), "3 samples.*2 labels|give as many"),
    (lambda: Examples(torch.zeros(3, 2), torch.zeros(3), variants=2), "variants are for images"),
    (lambda: load_task("letters"), "give digits, cifar10"),
    (lambda: vit(ViTSizes(1, 8, 4, 8, 8, 30)), "image 30 is not a multiple of 8"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
