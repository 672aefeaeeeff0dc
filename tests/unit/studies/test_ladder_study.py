"""The ladder's runs and tables: what a run opens, which rate is chosen, what a contrast may say."""

import math

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch

from alkit.data import datasets
from alkit.records import results
from alkit.records.packed import pack
from studies.ladder import arms as ladder_arms
from studies.ladder import labels as ladder_labels
from studies.ladder import runs as ladder_study
from studies.ladder import tables as ladder_tables

SIZES = {"blocks": 1, "width": 8, "hidden": 4}


@pytest.fixture(autouse=True)
def super_classes(monkeypatch):
    monkeypatch.setattr(ladder_labels, "SUPER_CLASSES", (0, 0, 1, 1, 1))  # of pydocs' five


@pytest.fixture(scope="module")
def data():
    return datasets.load("pydocs", max_len=6).subset(train=64, validation=40, test=30)


def trained(arm, data, seed, **options):
    given = {"lr": 3e-3, "epochs": 1, "batch_size": 32, "sizes": SIZES} | options
    return ladder_study.run(arm, "lstm", data, seed=seed, **given)


def test_the_tuning_seed_leaves_the_test_part_closed(data):
    tuned, counted = (trained("linear", data, seed) for seed in (ladder_study.TUNING_SEED, 0))
    assert tuned.test is tuned.correct is None
    assert len(counted.test) == len(counted.validation) == 3  # two exits and their mean
    assert 100 * counted.correct.mean() == pytest.approx(counted.test[1])
    run = results.Run("06_label_ladder")
    for outcome in (tuned, counted):
        ladder_study.record(run, "lstm", "pydocs", outcome)
    by_seed = pd.DataFrame(run.rows).groupby("seed").metric.apply(set)
    assert by_seed[0] - by_seed[100] == {"accuracy", "exits", "mean_of_exits", "correct"}
    assert {row["recipe"] for row in run.rows} == {"linear"}


@pytest.mark.parametrize("arm", ladder_arms.ARMS)
def test_every_arm_runs_on_texts(arm, data):
    outcome = trained(arm, data, seed=0)
    exits = 1 if arm == "bp" else 2 + ladder_arms.ARMS[arm].head
    assert len(outcome.test) == exits + 1  # and the mean
    assert len(outcome.losses) == (2 if ladder_arms.ARMS[arm].local else 1)
    assert not outcome.fit.diverged


@pytest.mark.parametrize("arm", ["bp", "coupled", "published", "dgl", "predsim", "scpl"])
def test_arms_run_on_pictures(arm):
    digits = datasets.load("digits", size=16).subset(train=64, validation=40, test=40)
    options = {"lr": 1e-3, "epochs": 1, "batch_size": 32, "sizes": {"width": 0.125}}
    outcome = ladder_study.run(arm, "resnet", digits, seed=0, **options)
    exits = 1 if arm == "bp" else len(outcome.fit.model)
    assert len(outcome.validation) == exits + 1  # and their mean


def test_a_run_is_a_function_of_its_seed_which_pairs_the_blocks_of_all_arms(data):
    one, same, other = (trained("detached", data, seed) for seed in (1, 1, 2))
    assert one.losses == same.losses
    assert one.losses != other.losses

    def words(arm, seed):
        model = trained(arm, data, seed, lr=0.0).fit.model
        return getattr(getattr(model[0], "enc", model[0]), "f", model[0]).table.weight

    paired = [words(arm, 1) for arm in ("bp", "deep_supervision", "detached", "dgl")]
    assert all(torch.equal(each, paired[0]) for each in paired)
    assert not torch.equal(words("bp", 2), paired[0])


@pytest.mark.parametrize("arm", ["detached", "coupled"])
def test_a_replay_differs_from_its_base_by_the_order_of_classes_alone(arm, data, monkeypatch):
    base, permuted = (trained(name, data, seed=1) for name in (arm, f"permuted_{arm}"))
    assert permuted.losses != base.losses
    monkeypatch.setattr(ladder_study, "_permuted", lambda classes, seed: torch.arange(classes))
    same = trained(f"permuted_{arm}", data, seed=1)
    assert [level[0] for level in same.losses] == [level[0] for level in base.losses]
    assert torch.equal(same.correct, base.correct)


def test_a_replay_of_a_run_that_diverged(data):
    with pytest.raises(RuntimeError, match="the run whose codes are to be replayed diverged: give"):
        trained("permuted_coupled", data, seed=0, lr=1e30)


@pytest.mark.parametrize("arm", ["bp", "deep_supervision", "linear", "coupled", "published"])
def test_scores_of_all_exits_are_those_of_each_and_the_last_is_the_prediction(data, arm):
    outcome = trained(arm, data, seed=0)
    x, _ = next(iter(data.test.batches(len(data.test), shuffle=False)))
    scores = ladder_study.exit_scores(outcome.fit.model, data.test, batch_size=len(data.test))
    depths = [{}] if arm == "bp" else [{"depth": at} for at in range(1, len(scores) + 1)]
    assert scores.shape == (len(depths), 30, 5)
    for found, depth in zip(scores, depths, strict=True):
        assert torch.equal(found, outcome.fit.model.predict(x, **depth))
    assert torch.equal((scores[-1].argmax(1) == data.test.y).float(), outcome.correct)


# ---- tables of made records ----


def row(arm, seed, metric, value, lr=1e-3):
    own = ladder_arms.ARMS[arm]
    recipe = "" if arm == "bp" else arm
    labels = {"data": "d", "model": "m", "method": own.method, "recipe": recipe, "arm": own.code}
    return labels | {"seed": seed, "metric": metric, "value": value, "n": 200, "lr": lr}


def tuning(arm, *values, lrs=(3e-4, 1e-3, 3e-3)):
    pairs = zip(values, lrs, strict=True)
    return [row(arm, 100, "val_accuracy", value, lr) for value, lr in pairs]


def opened(arm, rights):
    """Return what a run of each seed records that has so many of 200 test items right."""
    found = []
    for seed, right in enumerate(rights):
        correct = torch.arange(200) < right
        found += [row(arm, seed, "accuracy", right / 2.0)]
        found += [row(arm, seed, "mean_of_exits", right / 2.0)]
        found += [row(arm, seed, "correct", pack(correct)), row(arm, seed, "diverged", False)]
        found += [row(arm, seed, "head_parameters", 10), row(arm, seed, "train_s", 1.0)]
    return found


def test_rates_are_chosen_on_validation_and_edges_are_told():
    rows = tuning("bp", 80.0, 81.0, 79.0) + tuning("linear", 70.0, 71.0, 72.0)
    rows += tuning("cosine", 75.0, 75.0, 74.0) + [row("bp", 0, "val_accuracy", 99.0, 3e-3)]
    recorded = pd.DataFrame(rows)
    found = ladder_tables.chosen_rates(recorded)
    assert found == {("d", "m", "bp"): 1e-3, ("d", "m", "linear"): 3e-3, ("d", "m", "cosine"): 3e-4}
    assert set(ladder_tables.edges(recorded).arm) == {"linear", "cosine"}
    assert ladder_tables.best_local(recorded, "d", "m") == "cosine"
    changed = pd.concat([recorded, pd.DataFrame(tuning("simplex_codes", 99.0, 0.0, 0.0))])
    assert ladder_tables.best_local(changed, "d", "m") == "cosine"  # it was named beforehand
    one, other = tuning("linear", 75.0, 0.0, 0.0), tuning("coupled", 75.0, 0.0, 0.0)
    for equals in (one + other, other + one):  # in whatever order they ran
        assert ladder_tables.best_local(pd.DataFrame(equals), "d", "m") == "coupled"
    assert ladder_tables.chosen_rate(recorded, "d", "m", "linear") == 3e-3
    with pytest.raises(ValueError, match="no rate has been chosen for coupled on d, m"):
        ladder_tables.chosen_rate(recorded, "d", "m", "coupled_0")  # that of what it changes
    with pytest.raises(ValueError, match="no rate has been chosen for dgl on d, m: run the"):
        ladder_tables.chosen_rate(recorded, "d", "m", "dgl")
    assert ladder_tables.chosen_rates(pd.DataFrame()) == {}


def test_contrasts_have_both_intervals_and_a_verdict_each():
    rows = tuning("detached", 1.0, 3.0, 2.0) + tuning("linear", 1.0, 2.0, 0.0)
    rows += opened("detached", [180, 182, 181, 183, 180, 182])
    rows += opened("fixed_codes", [160, 161, 162, 161, 160, 159])
    rows += opened("linear", [160, 161, 162, 161, 160, 159])
    rows += opened("bp", [183, 181, 182, 183, 181, 182])
    gaps = ladder_tables.contrast_gaps(pd.DataFrame(rows))
    table = ladder_tables.contrasts(gaps).set_index("contrast")
    assert list(table.index) == [
        "detached - fixed_codes",
        "coupled - cosine",
        "fixed_codes - linear",
        "detached - bp",
    ]
    assert list(table.verdict) == ["ahead", "undecided", "equal", "undecided"]
    assert table["points (n)"].iloc[0].endswith("(6)")
    assert table.bootstrap.iloc[0].startswith("[+")
    assert table["p, Holm"].iloc[0] == pytest.approx(4 * table.p.iloc[0])
    assert math.isnan(table.p.iloc[1])
    accuracies = ladder_tables.accuracies(pd.DataFrame(rows)).set_index("name")
    assert list(accuracies.index) == ["bp", "linear", "fixed_codes", "detached"]
    assert (accuracies.n == 6).all()
    assert all(float(each) > 0 for each in accuracies.round(2).lr)  # rates outlive a table's round
    assert not ladder_tables.contrast_gaps(pd.DataFrame())
    rows += opened("simplex_codes", [160, 161, 162, 161, 160, 158])
    extra = ladder_tables.explored(pd.DataFrame(rows))
    assert list(extra.contrast) == ["simplex_codes - fixed_codes"]
    assert list(extra.hypothesis) == ["H1 geometry"]
    assert list(extra.verdict) == ["equal"]
    assert extra["p, Holm"].iloc[0] == pytest.approx(min(1, 16 * extra.p.iloc[0]))
    assert ladder_tables.explored(pd.DataFrame()).empty
    said = "A local rule against backprop: undecided in all 1 settings"
    assert ladder_tables.draw_contrasts(gaps).get_suptitle() == said
    both = gaps | {("e", "m", "linear - bp"): gaps["d", "m", "detached - fixed_codes"]}
    said = "In 1 of 2 settings a local rule matches or beats backprop"
    assert ladder_tables.draw_contrasts(both).get_suptitle() == said
    [ax] = ladder_tables.draw_contrasts(gaps).axes
    assert ax.get_yticklabels()[0].get_text() == "AL's detached codes - frozen codes: ahead (6)"
    plt.close("all")


def test_accuracies_by_arm_have_rates_and_hours():
    rows = tuning("linear", 1.0, 2.0, 0.0) + opened("linear", [160, 170])
    rows += opened("published_ce", [150]) + opened("simplex_codes", [160])
    rows += [row("bp", 100, "train_s", 7200 - 4)]
    table = ladder_tables.by_arm(pd.DataFrame(rows))
    assert table.to_dict("records") == [
        {
            "data": "d",
            "network": "m",
            "A2 linear heads": "82.50 ± 3.54 (2)",
            "A7b AL as published, labels first": "75.00 (1)",
            "rates": "0.0003, 0.001, 0.003",
            "core-hours": "2.0",
        }
    ]
    assert ladder_tables.by_arm(pd.DataFrame()).empty
