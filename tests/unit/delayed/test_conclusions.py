"""Conclusions from made records: what is said of them, and what is left open."""

from itertools import product

import pandas as pd

from studies.common.study import TUNING_SEED
from studies.delayed import conclusions

SEEDS = range(5)


def made_resnet(points: dict[tuple[str, int], float], seeds=SEEDS) -> pd.DataFrame:
    """Records of runs whose accuracies are about these, on the same 1,000 samples."""
    rows = []
    for seed, ((method, modules), mean) in product(seeds, points.items()):
        accuracy = mean + (seed * (modules + len(method)) % 5 - 2) / 10
        labels = {"method": method, "modules": modules, "lr": 0.1, "seed": seed, "data": "made"}
        labels |= {"recipe": f"K={modules}", "model": "resnet20", "n": 1000}
        values = {"accuracy": accuracy, "val_accuracy": accuracy, "diverged": False}
        for metric, value in values.items():
            rows.append(labels | {"metric": metric, "value": value})
    return pd.DataFrame(rows)


def resnet(points, seeds=SEEDS):
    """Return the table for accuracies after (method, modules)."""
    return conclusions.resnet(made_resnet(points, seeds)).set_index("conclusion")


def test_resnet():
    points = {("seq", 1): 90, ("pipedream", 2): 89.5, ("fr", 2): 89.5, ("pipedream", 11): 70}
    found = resnet(points | {("fr", 11): 80})
    assert found["same?"].loc[
        [
            "2 to 6 modules lose slightly (below a point)",
            "more modules lose more (fr)",
            "more modules lose more (pipedream)",
            "2 modules: FR behind PipeDream",
            "11 modules: FR ahead of PipeDream",
        ]
    ].tolist() == ["yes", "yes", "yes", "undecided", "yes"]
    assert "-10.0" in found.ours["11 modules: FR ahead of PipeDream"]
    assert found.ours.iloc[0].startswith("2 modules: up to +0.5")
    points = {("seq", 1): 90, ("pipedream", 2): 60, ("fr", 2): 80, ("pipedream", 11): 85}
    assert set(resnet(points | {("fr", 11): 81})["same?"]) == {"no"}, "the other way round"


def test_two_seeds_that_disagree_and_one_seed_decide_nothing():
    points = {("seq", 1): 90, ("pipedream", 2): 60, ("fr", 2): 60.1, ("fr", 11): 20}
    points |= {("pipedream", 11): 85}
    assert set(resnet(points, [0])["same?"]) == {"undecided"}
    assert resnet(points, [0, 1])["same?"]["2 modules: FR behind PipeDream"] == "undecided"


def made_characters(losses: dict[str, float], seeds=SEEDS) -> pd.DataFrame:
    """Runs of a character model whose test losses are about these, and one that chose a rate."""
    rows = []
    for seed, (method, mean) in product([TUNING_SEED, *seeds], losses.items()):
        labels = {"method": method, "modules": 1 if method == "seq" else 5, "seed": seed}
        labels |= {"dropout": 0.1, "lr": 0.01 if method == "seq" else 0.003}
        metric = "val_loss" if seed == TUNING_SEED else "loss"
        rows.append(labels | {"metric": metric, "value": mean + seed % 3 / 1000, "n": 8})
    return pd.DataFrame(rows)


LOSSES = {"seq": 2.0, "pipedream": 2.1, "fr": 2.1, "fr, new noise": 2.4}


def test_a_transformer():
    recorded = made_characters(LOSSES)
    found = conclusions.transformer(recorded)
    assert list(found["same?"]) == ["no", "with new noise: yes; replayed: no", "undecided"]
    assert "+0.10 [" in found.ours.iloc[0]
    assert found.ours.iloc[2].endswith("sequential 0.01, PipeDream 0.003, FR 0.003")
    none = conclusions.transformer(made_characters(LOSSES | {"pipedream": 2.0}))
    assert none["same?"].iloc[0] == "yes"
    one = conclusions.transformer(made_characters(LOSSES, seeds=[0]))["same?"]
    assert list(one) == ["undecided", "with new noise: undecided; replayed: undecided", "undecided"]
    # it is judged where its rates were chosen
    other = made_characters({"seq": 2.0, "pipedream": 9.0, "fr": 9.0}).assign(dropout=0.0)
    both = pd.concat([other[other.seed != TUNING_SEED], recorded])
    pd.testing.assert_frame_equal(conclusions.transformer(both), found)
    assert not len(conclusions.transformer(pd.DataFrame())), "before it has run"
