"""Studies: cases, one trained and resumed, what is recorded, and what is read from records."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from alkit.data import datasets, paths
from alkit.data.parts import Part
from alkit.models.convnet import convnet
from alkit.records import results
from alkit.records.comparisons import gap
from studies.al import families
from studies.al import family_study as study

OPTIONS = {"epochs": 2, "batch_size": 32, "progress": False}


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Return some digits, a family of a tiny network, and a place for checkpoints."""

    def blocks(channels):
        return convnet(channels, widths=(4, 4))

    tiny = families.Family("images", blocks, head=lambda *_: None, pools=lambda count: None)
    monkeypatch.setitem(families.FAMILIES, "tiny", tiny)
    monkeypatch.setattr(paths, "runs_dir", lambda: tmp_path)
    return datasets.load("digits").subset(train=100, validation=50, test=50)


def test_cases_run_seed_by_seed():
    found = study.cases(["bp", "al"], ["original", "fixed_codes"], [0, 1])
    assert [case.label for case in found] == ["bp", "al original", "al fixed_codes"] * 2
    assert [case.seed for case in found] == [0, 0, 0, 1, 1, 1]


def _rows(method, recipe, seed, correct):
    extra = {"metric": "accuracy", "value": 100 * sum(correct) / len(correct), "n": len(correct)}
    return {"method": method, "recipe": recipe, "seed": seed, **extra}


def test_the_gap_is_taken_over_the_seeds_that_both_have():
    right, wrong = [1.0] * 40, [1.0] * 20 + [0.0] * 20
    rows = [_rows("bp", float("nan"), seed, right) for seed in (0, 1)]
    rows += [_rows("al", "fixed_codes", seed, wrong) for seed in (1, 2)]
    found = gap(pd.DataFrame(rows), "bp", "al fixed_codes")
    assert (found.seeds, found.points) == (1, 50)
    assert np.isnan(found.low)
    same = gap(pd.DataFrame(rows), "bp", "bp")
    assert same[:4] == (0, 0, 0, 2)
    none = gap(pd.DataFrame(rows), "bp", "al mse")
    assert none.seeds == 0
    assert str(none) == "no seed has both yet"
    other = [_rows("bp", "", 0, right), _rows("al", "fixed_codes", 0, right[:30])]
    with pytest.raises(ValueError, match="on parts of 30, 40 samples"):
        gap(pd.DataFrame(other), "bp", "al fixed_codes")


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
    (file,) = (tmp_path / "checkpoints").iterdir()
    assert file.name.startswith("99_x.")
    resumed = study.train_case(case, "tiny", small, resumable="99_x", **OPTIONS)
    assert begun == [0, 1, 1]
    assert torch.equal(resumed.fit.test_correct, whole.fit.test_correct)
    assert resumed.exits == whole.exits
    assert len(whole.exits) == (2 if method == "al" else 1)
    assert whole.fit.history.val_acc.tolist() == resumed.fit.history.val_acc.tolist()
    other = replace(case, seed=2)
    study.train_case(other, "tiny", small, resumable="99_x", **OPTIONS)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_what_is_recorded_can_be_read_again(small):
    run = results.Run("99_x")
    bp, al = (
        study.train_case(case, "tiny", small, **OPTIONS)
        for case in study.cases(["bp", "al"], ["fixed_codes"], [0])
    )
    study.record(run, "tiny", "digits", bp)
    study.record(run, "tiny", "digits", al, extra={"table": "aligned"})
    rows = pd.DataFrame(run.rows)
    own = rows[rows.method == "al"]
    assert set(own.table) == {"aligned"}
    assert set(own.recipe) == {"fixed_codes"}
    assert rows[rows.method == "bp"].table.isna().all()
    accuracy = own[own.metric == "accuracy"].value.item()
    assert accuracy == pytest.approx(100 * al.fit.test_acc)
    difference, *_ = gap(rows, "bp", "al fixed_codes")
    assert difference == pytest.approx(100 * (bp.fit.test_acc - al.fit.test_acc))
    curves = study.curves(rows)
    assert curves.groupby("label").epoch.max().to_dict() == {"al fixed_codes": 2, "bp": 2}
    assert (bp.plateau_epochs, al.plateau_epochs) == (0, 0)
    plateau = study.train_case(study.Case("al", "original", 0), "tiny", small, **OPTIONS)
    assert plateau.plateau_epochs == 2
    assert curves.val_acc.iloc[-1] == pytest.approx(100 * al.fit.history.val_acc.iloc[-1], abs=1e-3)


def test_another_starting_table_or_version_is_another_run(tmp_path, monkeypatch):
    monkeypatch.setattr(study.paths, "root", lambda: tmp_path)
    data = datasets.load("pydocs").subset(train=60, validation=20, test=20)
    rows = len(data.vocabulary)
    options = {"epochs": 1, "batch_size": 30, "sizes": {"blocks": 1, "hidden": 4}}
    case, kept = study.Case("al", "fixed_codes", 0), tmp_path / "runs" / "checkpoints"
    for vectors in (torch.zeros(rows, 6), torch.ones(rows, 6), torch.ones(rows, 6)):
        study.train_case(case, "lstm", data, vectors=vectors, resumable="here", **options)
    assert len(list(kept.glob("*.pt"))) == 2
    monkeypatch.setattr(study, "VERSION", study.VERSION + 1)
    study.train_case(case, "lstm", data, vectors=vectors, resumable="here", **options)
    assert len(list(kept.glob("*.pt"))) == 3
