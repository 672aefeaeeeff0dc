"""Elastic training over processes: the same training, and what becomes of a rank that dies."""

import io
import os
import signal
import tempfile
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from alkit import launch
from alkit.elastic.freeze import cap
from alkit.engine.launch import RankFailed
from studies.elastic import ablation as study
from studies.elastic.tasks import Task
from tests.helpers import refused
from tests.unit.elastic.helpers import (
    SETTINGS,
    Found,
    close,
    expected,
    holding,
    images,
    make_vit,
    on_devices,
    plain,
    same,
    sgd,
    shared_out,
    train,
    training,
)

SGD = SETTINGS | {"freeze": "none", "optimizer": sgd, "lr": 0.05}


class Dies:
    """The published schedule, which kills its rank once; a rule is asked on rank 0."""

    def __init__(self, asked: Path) -> None:
        self.asked = asked

    def __call__(self, moment):
        with self.asked.open("a") as file:
            file.write(f"{moment.evaluation} ")
        if self.asked.read_text() == "1 2 ":
            os.kill(os.getpid(), signal.SIGKILL)
        return cap(moment.layers, 1 / 3, moment.evaluation)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run whose rank 0, which has made a folder of features, dies after two epochs."""
    folder, features = (tmp_path_factory.mktemp(name) for name in ("killed", "features"))
    options = {"freeze": Dies(folder / "asked"), "checkpoint": folder / "run.pt"}
    run = partial(_in_folder, str(features), training(**options))
    with pytest.raises(RankFailed) as failed:
        launch(run, ranks=2)
    return SimpleNamespace(failed=failed.value, options=options, left=[*features.iterdir()])


def _in_folder(folder, call):
    """Make a call whose files of features lie in this folder."""
    tempfile.tempdir = folder
    try:
        return call()
    finally:
        tempfile.tempdir = None


def _other_weights():
    network = make_vit()
    if dist.get_rank() == 1:
        with torch.no_grad():
            network.units[3].f.out_proj.weight[0, 0] += 1e-9
    return refused(partial(train, network, images(), SETTINGS))


@pytest.fixture(scope="module")
def two(killed, tmp_path_factory):
    """What two ranks find, one run after the other, and what they print."""
    none = str(tmp_path_factory.mktemp("no") / "folder")
    with redirect_stdout(io.StringIO()) as said:
        found = on_devices({
            "texts": training("bert"),
            "nothing": training(pipe=False, dp=False, cache=False),
            "a pipeline": training(dp=False),
            "replicas": training("bert", stages=1),
            "gone on": training(**killed.options),
            "no folder": partial(_in_folder, none, training()),
            "other weights": _other_weights,
        })  # fmt: skip
    return found | {"said": said.getvalue()}


@pytest.fixture(scope="module")
def four():
    sgd = partial(holding, training(settings=SGD))
    return on_devices({"two stages": training(stages=2), "sgd": sgd}, ranks=4)


def test_two_ranks_give_back_what_they_have_trained():
    """Pipeline 2 -> 1, replicas 1 -> 2, with a store and AdamW; as a row of the ablation."""
    network, test = make_vit(), images(10)
    task = Task("made", images(), test, test, 3)
    found = Found(study.measured("elastic", network, task, SETTINGS, ranks=2))
    same(found, expected())
    close(network.state_dict(), expected())
    layouts = list(zip(found.history.stages, found.history.replicas, strict=True))
    assert (layouts[0], layouts[-1]) == ((2, 1), (1, 2))
    assert found.history.hits.sum() + found.history.advanced.sum() > 0
    network.eval()
    with torch.no_grad():
        right = network(test.x).argmax(1) == test.y
    assert torch.equal(found.test_correct.bool(), right)
    # what the trained network knows of freezing came along
    assert network.frozen == 3
    assert not next(network.units[0].parameters()).requires_grad


@pytest.mark.parametrize(
    ("ranks", "name", "task", "layouts", "stores"),
    [
        ("two", "texts", "bert", {(2, 1), (1, 2)}, True),
        ("two", "nothing", "vit", {(2, 1)}, False),
        ("two", "a pipeline", "vit", {(2, 1), (1, 1)}, True),
        ("two", "replicas", "bert", {(1, 2)}, True),
        ("two", "gone on", "vit", {(2, 1), (1, 2)}, True),
        ("two", "no folder", "vit", {(2, 1), (1, 2)}, False),
        ("four", "two stages", "vit", {(2, 2), (1, 4)}, True),
    ],
)
def test_whatever_the_layout_all_ranks_end_as_the_plain_loop(
    ranks, name, task, layouts, stores, request
):
    every = request.getfixturevalue(ranks)[name]
    for found in every:
        same(found, expected(task))
        assert set(zip(found.history.stages, found.history.replicas, strict=True)) == layouts
        assert (found.history.hits.sum() + found.history.advanced.sum() > 0) == stores
    assert len(every) == {"two": 2, "four": 4}[ranks]


def test_four_ranks_share_a_network_out(four):
    for rank, (found, there) in enumerate(four["sgd"]):
        close(found, plain(make_vit(), images(), SGD))
        assert there == [shared_out(make_vit(), layout, rank) for layout in found.layouts]


def test_ranks_that_begin_with_different_weights(two):
    for said in two["other weights"]:
        assert "1 of 2 ranks differ from rank 0 in units.3.f.out_proj.weight" in said


def test_a_killed_rank_is_named_and_leaves_no_features_and_its_run_goes_on(killed, two):
    assert "rank 0 died of SIGKILL" in str(killed.failed)
    assert not killed.left
    assert killed.options["freeze"].asked.read_text() == "1 2 2 3 "  # not begun anew
    assert len(two["gone on"][0].layouts) == SETTINGS["epochs"]


def test_a_folder_that_is_none_is_said_once(two):
    """Training goes on without a store on all ranks."""
    assert two["said"].count("training goes on: [Errno 2] No such file") == 1
    assert not any(found.history.cached.any() for found in two["no folder"])
