"""Elastic training over processes: the same training, and what becomes of a rank that dies."""

import os
import signal
import time
from dataclasses import replace

import pytest
import torch

from alkit import launch
from alkit.engine.launch import RankFailed
from studies.elastic.rivals import RIVALS, rival
from tests.unit.elastic.helpers import TASKS, Found, close, images, make_vit, plain, same, train


@pytest.mark.parametrize("task", TASKS)
def test_two_ranks_from_pipeline_to_replicas(task, settings):
    """Pipeline 2 -> 1, replicas 1 -> 2, with a store and AdamW."""
    make, data = TASKS[task]
    expected, network = plain(make(), data(), settings), make()
    found = train(network, data(), settings, ranks=2, cache_from=1, test=data(10))
    same(found, expected)
    close(network.state_dict(), expected)
    layouts = list(zip(found.history.stages, found.history.replicas, strict=True))
    assert (layouts[0], layouts[-1]) == ((2, 1), (1, 2))
    assert found.history.hits.sum() + found.history.advanced.sum() > 0
    network.eval()
    with torch.no_grad():
        right = network(data(10).x).argmax(1) == data(10).y
    assert torch.equal(found.test_correct.bool(), right)
    # what the trained network knows of freezing came along
    assert network.frozen == 3
    assert not next(network.units[0].parameters()).requires_grad


@pytest.mark.parametrize(
    ("ranks", "options", "replicas"),
    [
        (2, {"pipe": False, "dp": False, "cache": False}, {1}),
        (2, {"pipe": True, "dp": False, "cache": True, "cache_from": 1}, {1}),
        (4, {"stages": 2}, {2, 4}),
    ],
)
def test_other_layouts_over_ranks(ranks, options, replicas, settings):
    found = train(make_vit(), images(), settings, ranks=ranks, **options)
    same(found, plain(make_vit(), images(), settings))
    assert set(found.history.replicas) == replicas


def _with_another_seed(settings):
    import torch.distributed as dist

    network = make_vit()
    if dist.get_rank() == 1:
        with torch.no_grad():
            network.units[3].mix.weight[0, 0] += 1e-9
    train(network, images(), settings)


def test_ranks_that_begin_with_different_weights(settings):
    settings = replace(settings, devices=2, executor="ranks")
    with pytest.raises(RankFailed, match="1 of 2 ranks differ from rank 0 in layer 1, Attention"):
        launch(_with_another_seed, settings, ranks=2)


def _dies_while_regrouping(settings, path):
    import torch.distributed as dist

    from alkit.elastic import world

    regroup = world.World.regroup

    def deadly(self, layout):
        if dist.get_rank() == 1 and layout.stages == 1:
            (path.parent / "died").write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        regroup(self, layout)

    world.World.regroup = deadly
    train(make_vit(), images(), settings, checkpoint=path)


def test_a_rank_that_dies_in_a_transformation(settings, tmp_path):
    """It is named long before a heartbeat is missed, and the checkpoint goes on."""
    path = tmp_path / "run.pt"
    ours = replace(settings, devices=2, executor="ranks", cache_folder=str(tmp_path))
    with pytest.raises(RankFailed, match="rank 1 died of SIGKILL"):
        launch(_dies_while_regrouping, ours, path, ranks=2, heartbeat_s=900.0)
    assert time.monotonic() - float((tmp_path / "died").read_text()) < 300
    found = train(make_vit(), images(), settings=ours, ranks=2, checkpoint=path)
    close(found.state, plain(make_vit(), images(), settings).state, 1e-12)
    assert found.messages[0].step == 0


def _deadly(moment):
    os.kill(os.getpid(), signal.SIGKILL)


def test_no_features_are_left_when_ranks_are_killed(settings, tmp_path, capsys):
    """The rank that has made the folder dies; a rule is asked on rank 0."""
    options = {"settings": settings, "ranks": 2, "cache_folder": str(tmp_path)}
    with pytest.raises(RankFailed, match="rank 0 died of SIGKILL"):
        train(make_vit(), images(), freeze=_deadly, **options)
    assert not list(tmp_path.iterdir())
    capsys.readouterr()
    found = train(make_vit(), images(), **options | {"cache_folder": str(tmp_path / "none")})
    assert capsys.readouterr().out.count("give another cache_folder") == 1
    assert not found.history.cached.any()
    close(found.state, plain(make_vit(), images(), settings).state, 1e-12)


@pytest.mark.parametrize("kind", [kind for kind in RIVALS if kind != "ddp_lora"])
@pytest.mark.parametrize("task", TASKS)
def test_what_a_user_would_take_instead_trains_alike(kind, task, settings):
    """Nothing frozen: DDP and FSDP end where the plain loop does."""
    make, data = TASKS[task]
    settings = replace(settings, freeze="none")
    expected = plain(make(), data(), settings)
    found = Found(
        rival(kind, make(), data(), settings=settings, validation=data(10), test=data(10))
    )
    same(found, expected)
    assert len(found.history) == settings.epochs
    assert len(found.test_correct) == 10
