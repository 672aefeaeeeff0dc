"""A study's case that was interrupted goes on in the same bits, and as no other case."""

from dataclasses import replace

import pytest
import torch

from alkit.base import paths
from alkit.data import datasets
from alkit.data.parts import Part
from studies.al import families
from studies.al import family_study as study
from tests.unit.al.helpers import convnet

OPTIONS = {"epochs": 2, "batch_size": 32, "progress": False}


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Return some digits, a family of a tiny network, and a place for checkpoints."""

    def blocks(channels):
        return convnet(channels, widths=(4, 4))

    tiny = families.Family("images", blocks)
    monkeypatch.setitem(families.FAMILIES, "tiny", tiny)
    monkeypatch.setattr(paths, "root", lambda: tmp_path)
    return datasets.load("digits").subset(train=100, validation=50, test=50)


@pytest.mark.parametrize("method", ["bp", "al"])
def test_a_case_goes_on_from_its_checkpoint(small, tmp_path, method, monkeypatch):
    case = study.Case(method, "fixed_codes" if method == "al" else "", seed=1)
    whole = study.train_case(case, "tiny", small, **OPTIONS)
    begun = []
    batches = Part.batches

    def interrupted(part, *args, **options):
        begun.extend([options["epoch"]] if "epoch" in options else [])
        if "epoch" in options and begun == [0, 1]:
            raise KeyboardInterrupt
        return batches(part, *args, **options)

    monkeypatch.setattr(Part, "batches", interrupted)
    with pytest.raises(KeyboardInterrupt):
        study.train_case(case, "tiny", small, resumable="99_x", **OPTIONS)
    (file,) = (tmp_path / "runs/checkpoints").glob("99_x.*")
    assert file.name.startswith("99_x.")
    resumed = study.train_case(case, "tiny", small, resumable="99_x", **OPTIONS)
    assert begun == [0, 1, 1]
    assert torch.equal(resumed.fit.test_correct, whole.fit.test_correct)
    assert resumed.exits == whole.exits
    assert len(whole.exits) == (2 if method == "al" else 1)
    assert whole.fit.history.val_acc.tolist() == resumed.fit.history.val_acc.tolist()
    other = replace(case, seed=2)
    study.train_case(other, "tiny", small, resumable="99_x", **OPTIONS)
    assert len(list((tmp_path / "runs/checkpoints").glob("99_x.*"))) == 2
