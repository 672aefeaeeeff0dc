"""The ladder's runs and tables: what a run opens, which rate is chosen, what a contrast may say."""

import pandas as pd
import pytest
import torch

from alkit.data import datasets
from alkit.records import results
from studies.ladder import labels as ladder_labels
from studies.ladder import runs as ladder_study
from studies.ladder import tables as ladder_tables
from studies.ladder import variants as ladder_variants

SIZES = {"blocks": 1, "width": 8, "hidden": 4}


@pytest.fixture(autouse=True)
def super_classes(monkeypatch):
    monkeypatch.setattr(ladder_labels, "SUPER_CLASSES", (0, 0, 1, 1, 1))  # of pydocs' five


@pytest.fixture(scope="module")
def data():
    return datasets.load("pydocs", max_len=6).subset(train=64, validation=40, test=30)


def trained(variant, data, seed, **options):
    given = {"lr": 3e-3, "epochs": 1, "batch_size": 32, "sizes": SIZES} | options
    return ladder_study.run(variant, "lstm", data, seed=seed, **given)


def test_the_tuning_seed_leaves_the_test_part_closed(data):
    tuned, counted = (trained("linear", data, seed) for seed in (ladder_study.TUNING_SEED, 0))
    assert tuned.test is tuned.correct is None
    assert len(counted.test) == len(counted.validation) == 3  # two exits and their mean
    assert 100 * counted.correct.mean() == pytest.approx(counted.test[1])
    run = results.Run("06_label_ladder")
    for outcome in (tuned, counted):
        ladder_study.record(run, "lstm", "pydocs", outcome)
    by_seed = pd.DataFrame(run.rows).groupby("seed").metric.apply(set)
    assert by_seed[0] - by_seed[100] == {"accuracy", "exits", "mean_of_exits"}
    assert {row["recipe"] for row in run.rows} == {"linear"}


@pytest.mark.parametrize("variant", ladder_variants.VARIANTS)
def test_every_variant_runs_on_texts(variant, data):
    outcome = trained(variant, data, seed=0)
    exits = 1 if variant == "bp" else 2 + ladder_variants.VARIANTS[variant].head
    assert len(outcome.test) == exits + 1  # and the mean
    assert len(outcome.losses) == (2 if ladder_variants.VARIANTS[variant].local else 1)
    assert not outcome.fit.diverged


@pytest.mark.parametrize("variant", ["bp", "coupled", "published", "dgl", "predsim", "scpl"])
def test_variants_run_on_pictures(variant):
    digits = datasets.load("digits", size=16).subset(train=64, validation=40, test=40)
    options = {"lr": 1e-3, "epochs": 1, "batch_size": 32, "sizes": {"width": 0.125}}
    outcome = ladder_study.run(variant, "resnet", digits, seed=0, **options)
    exits = 1 if variant == "bp" else len(outcome.fit.model)
    assert len(outcome.validation) == exits + 1  # and their mean


def test_a_run_is_a_function_of_its_seed_which_pairs_the_blocks_of_all_arms(data):
    one, same, other = (trained("detached", data, seed) for seed in (1, 1, 2))
    assert one.losses == same.losses
    assert one.losses != other.losses

    def words(variant, seed):
        model = trained(variant, data, seed, lr=0.0).fit.model
        return getattr(getattr(model[0], "enc", model[0]), "f", model[0]).table.weight

    paired = [words(variant, 1) for variant in ("bp", "deep_supervision", "detached", "dgl")]
    assert all(torch.equal(each, paired[0]) for each in paired)
    assert not torch.equal(words("bp", 2), paired[0])


@pytest.mark.parametrize("variant", ["detached", "coupled"])
def test_a_replay_differs_from_its_base_by_the_order_of_classes_alone(variant, data, monkeypatch):
    base, permuted = (trained(name, data, seed=1) for name in (variant, f"permuted_{variant}"))
    assert permuted.losses != base.losses
    monkeypatch.setattr(ladder_study, "_permuted", lambda classes, seed: torch.arange(classes))
    same = trained(f"permuted_{variant}", data, seed=1)
    assert [level[0] for level in same.losses] == [level[0] for level in base.losses]
    assert torch.equal(same.correct, base.correct)


def test_a_replay_of_a_run_that_diverged(data):
    with pytest.raises(RuntimeError, match="the run whose codes are to be replayed diverged: give"):
        trained("permuted_coupled", data, seed=0, lr=1e30)


@pytest.mark.parametrize("variant", ["bp", "deep_supervision", "linear", "coupled", "published"])
def test_scores_of_all_exits_are_those_of_each_and_the_last_is_the_prediction(data, variant):
    outcome = trained(variant, data, seed=0)
    x, _ = next(iter(data.test.batches(len(data.test), shuffle=False)))
    scores = ladder_study.exit_scores(outcome.fit.model, data.test, batch_size=len(data.test))
    depths = [{}] if variant == "bp" else [{"depth": at} for at in range(1, len(scores) + 1)]
    assert scores.shape == (len(depths), 30, 5)
    for found, depth in zip(scores, depths, strict=True):
        assert torch.equal(found, outcome.fit.model.predict(x, **depth))
    assert torch.equal((scores[-1].argmax(1) == data.test.y).float(), outcome.correct)


# ---- tables of made records ----


def tuned(variant, value):
    labels = {
        "data": "d",
        "model": "m",
        "variant": ladder_variants.VARIANTS[variant].code,
        "seed": 100,
    }
    return labels | {"metric": "val_accuracy", "value": value, "lr": 1e-3}


def test_a_rate_is_chosen_when_as_many_were_tried_as_for_what_a_head_reads():
    """Half a sweep that was recorded would choose among the rates that happened to run."""
    base = [tuned("fixed_codes", 70.0) | {"lr": rate} for rate in (1e-3, 3e-3)]
    half = [tuned("fixed_codes_head", 71.0)]
    with pytest.raises(ValueError, match=r"fixed_codes_head on d, m lacks rates 0\.003"):
        ladder_tables.chosen_rate(pd.DataFrame([*base, *half]), "d", "m", "fixed_codes_head")
    whole = [*half, tuned("fixed_codes_head", 72.0) | {"lr": 3e-3}]
    recorded = pd.DataFrame([*base, *whole])
    assert ladder_tables.chosen_rate(recorded, "d", "m", "fixed_codes_head") == 3e-3


def test_the_best_local_variant_is_one_that_was_named_beforehand():
    rows = [tuned("bp", 81.0), tuned("linear", 72.0), tuned("cosine", 75.0)]
    recorded = pd.DataFrame(rows)
    assert ladder_tables.best_local(recorded, "d", "m") == "cosine"
    changed = pd.DataFrame([*rows, tuned("simplex_codes", 99.0)])
    assert ladder_tables.best_local(changed, "d", "m") == "cosine"
    one, other = tuned("linear", 75.0), tuned("coupled", 75.0)
    for equals in ([one, other], [other, one]):  # in whatever order they ran
        assert ladder_tables.best_local(pd.DataFrame(equals), "d", "m") == "coupled"
    assert ladder_tables.chosen_rate(recorded, "d", "m", "linear") == 1e-3
    with pytest.raises(ValueError, match="no rate has been chosen for coupled on d, m"):
        ladder_tables.chosen_rate(recorded, "d", "m", "coupled_0")  # that of what it changes
