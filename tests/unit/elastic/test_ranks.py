"""Elastic training over processes: the same training, what a rank holds, sends, and leaves."""

import io
import os
import signal
import tempfile
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from alkit import launch
from alkit.elastic.freeze import cap
from alkit.engine.launch import RankFailed
from tests.helpers import on_ranks, refused
from tests.unit.elastic.helpers import (
    SETTINGS,
    TASKS,
    close,
    expected,
    holding,
    images,
    make_vit,
    plain,
    same,
    sgd,
    shared_out,
    train,
    training,
)

SGD = SETTINGS | {"freeze": "none", "optimizer": sgd, "lr": 0.05}
# a task, options, the layouts (stages, replicas), is something stored
RUNS = {
    "texts": ("bert", {"micro": 4}, {(2, 1), (1, 2)}, True),
    "gpipe": ("vit", {"schedule": "gpipe"}, {(2, 1), (1, 2)}, True),
    "two stages to the end": ("bert", {"budget": 1e-9}, {(2, 1)}, True),
    "nothing": ("vit", {"pipe": False, "dp": False, "cache": False}, {(2, 1)}, False),
    "a pipeline": ("vit", {"dp": False}, {(2, 1), (1, 1)}, True),
    "replicas": ("bert", {"stages": 1}, {(1, 2)}, True),
}


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
    with pytest.raises(RankFailed) as failed:
        launch(partial(_in_folder, str(features), training(**options)), ranks=2)
    return SimpleNamespace(failed=failed.value, options=options, left=[*features.iterdir()])


def _in_folder(folder, call):
    """Make a call whose files of features lie in this folder."""
    with patch.object(tempfile, "tempdir", folder):
        return call()


def _other_weights():
    network = make_vit()
    if dist.get_rank() == 1:
        with torch.no_grad():
            network.units[3].f.out_proj.weight[0, 0] += 1e-9
    return refused(partial(train, network, images(), SETTINGS))


@pytest.fixture(scope="module")
def two(killed, tmp_path_factory):
    """What two ranks find, one run after the other, and what they print."""
    folder = tmp_path_factory.mktemp("ranks")
    runs = {
        name: partial(holding, training(task, test=TASKS[task][1](10), **options))
        for name, (task, options, *_) in RUNS.items()
    }
    runs |= {"gone on": training(**killed.options), "other weights": _other_weights}
    runs["no folder"] = partial(_in_folder, str(folder / "none"), training())
    with redirect_stdout(io.StringIO()) as said:
        found = on_ranks(runs)
    return SimpleNamespace(runs=found, said=said.getvalue())


def layouts_of(found):
    return {*zip(found.history.stages, found.history.replicas, strict=True)}


@pytest.mark.parametrize("name", RUNS)
def test_all_ranks_end_as_the_plain_loop_and_let_go_of_what_is_not_their_own(name, two):
    """In every layout: others' units, their moments, and frozen units but on first stages."""
    task, _, layouts, stores = RUNS[name]
    for rank, (found, there, whole) in enumerate(two.runs[name]):
        same(found, expected(task))
        assert layouts_of(found) == layouts
        assert (found.history.hits.sum() + found.history.advanced.sum() > 0) == stores
        network = TASKS[task][0]()
        assert there == [shared_out(network, layout, rank) for layout in found.layouts]
        assert whole
        shapes = [own.shape for own in found.state.values()]
        assert shapes == [own.shape for own in network.state_dict().values()]


FOUR = {  # settings, the layouts; replicas of one or two samples: what a part weighs is exact
    "stages": (SETTINGS | {"stages": 2}, {(2, 2), (1, 4)}),
    "sgd": (SGD, {(4, 1)}),
    "uneven": (SETTINGS | {"batch_size": 5, "scheduler": None}, {(4, 1), (2, 2), (1, 4)}),
}


def test_four_ranks_share_a_network_out():
    runs = {name: partial(holding, training(settings=own)) for name, (own, _) in FOUR.items()}
    for name, each in on_ranks(runs, ranks=4).items():
        oracle = plain(make_vit(), images(), FOUR[name][0])
        for rank, (found, there, _) in enumerate(each):
            same(found, oracle)
            assert there == [shared_out(make_vit(), layout, rank) for layout in found.layouts]
            assert layouts_of(found) == FOUR[name][1]


def test_ranks_that_are_started_give_back_what_they_have_trained():
    """What the trained network knows of freezing comes along."""
    network, test = make_vit(), images(10)
    found = train(network, images(), SETTINGS, ranks=2, test=test)
    same(found, expected())
    close(network.state_dict(), expected())
    assert torch.equal(found.test_correct.bool(), network.predict(test.x).argmax(1) == test.y)
    assert network.frozen == 3
    assert not next(network.units[0].parameters()).requires_grad


def test_ranks_that_begin_with_different_weights(two):
    for said in two.runs["other weights"]:
        assert "1 of 2 ranks differ from rank 0 in units.3.f.out_proj.weight" in said


def test_a_killed_rank_is_named_and_leaves_no_features_and_its_run_goes_on(killed, two):
    assert "rank 0 died of SIGKILL" in str(killed.failed)
    assert not killed.left
    assert killed.options["freeze"].asked.read_text() == "1 2 2 3 "  # not begun anew
    for found in two.runs["gone on"]:
        same(found, expected())
        assert len(found.layouts) == SETTINGS["epochs"]


def test_a_folder_that_is_none_is_said_once_and_training_goes_on_without_a_store(two):
    assert two.said.count("training goes on: [Errno 2] No such file") == 1
    for found in two.runs["no folder"]:
        same(found, expected())
        assert not found.history.cached.any()
