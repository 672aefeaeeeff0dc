"""Conclusions from made records: what is said of them, and what is left open."""

from itertools import product

import pandas as pd
import torch

from alkit.records.study import pack
from studies import conclusions

SEEDS = range(5)


def made_resnet(points: dict[tuple[str, int], float], seeds=SEEDS) -> pd.DataFrame:
    """Records of runs whose accuracies are about these, on the same 1,000 samples."""
    rows = []
    for seed, ((method, modules), mean) in product(seeds, points.items()):
        accuracy = mean + (seed * (modules + len(method)) % 5 - 2) / 10
        correct = torch.arange(1000) < 10 * accuracy
        labels = {"method": method, "modules": modules, "lr": 0.1, "seed": seed, "data": "made"}
        labels |= {"recipe": f"K={modules}", "model": "resnet20", "n": 1000}
        for metric, value in (
            ("accuracy", accuracy), ("val_accuracy", accuracy), ("diverged", False),
            ("correct", pack(correct)),
        ):  # fmt: skip
            rows.append(labels | {"metric": metric, "value": value})
    return pd.DataFrame(rows)


def test_resnet():
    found = conclusions.resnet(
        made_resnet(
            {("seq", 1): 90, ("pipedream", 2): 89.5, ("fr", 2): 89.5, ("pipedream", 11): 70}
            | {("fr", 11): 80}
        )
    ).set_index("conclusion")
    same = found["same?"]
    assert same["2 to 6 modules lose slightly (below a point)"] == "yes"
    assert (
        same["more modules lose more (fr)"] == same["more modules lose more (pipedream)"] == "yes"
    )
    assert same["2 modules: FR behind PipeDream"] == "open"
    assert same["11 modules: FR ahead of PipeDream"] == "yes"
    assert "-10.0" in found.ours["11 modules: FR ahead of PipeDream"]


def test_the_other_way_round():
    found = conclusions.resnet(
        made_resnet(
            {("seq", 1): 90, ("pipedream", 2): 60, ("fr", 2): 80, ("pipedream", 11): 85}
            | {("fr", 11): 81}
        )
    ).set_index("conclusion")["same?"]
    assert set(found) == {"no"}


def test_two_seeds_that_disagree_and_one_seed_decide_nothing():
    points = {("seq", 1): 90, ("pipedream", 2): 60, ("fr", 2): 60.1, ("fr", 11): 20}
    points |= {("pipedream", 11): 85}
    assert set(conclusions.resnet(made_resnet(points, seeds=[0]))["same?"]) == {"open"}
    two = conclusions.resnet(made_resnet(points, seeds=[0, 1])).set_index("conclusion")["same?"]
    assert two["2 modules: FR behind PipeDream"] == "open"


def made_bert(losses: dict[tuple[str, int], float], too_large: float, seeds=SEEDS) -> pd.DataFrame:
    """Runs at two rates; at the larger one stale methods end at `too_large`."""
    rows = []
    for seed, (method, modules), lr in product(seeds, losses, (0.1, 1.0)):
        labels = {"method": method, "modules": modules, "lr": lr, "seed": seed}
        loss = losses[method, modules] + seed / 1000
        ends = too_large if lr == 1.0 and method != "seq" else loss
        rows.append(labels | {"metric": "final_loss", "value": ends})
        rows.append(labels | {"metric": "diverged", "value": False})
    return pd.DataFrame(rows)


LOSSES = {("seq", 1): 5.0, ("pipedream", 3): 5.05, ("fr", 3): 5.0, ("fr, new noise", 3): 6.0}


def test_bert():
    found = conclusions.bert(made_bert(LOSSES, 7.0))
    same = list(found["same?"])
    assert same == ["yes", "with new noise: yes; replayed: no", "yes"]
    assert found.ours.iloc[2].startswith("at 1 it ends at 5.00, 15 of 15 stale runs at 7.00")
    assert conclusions.bert(made_bert(LOSSES, 5.0))["same?"].iloc[2] == "open"
    one = conclusions.bert(made_bert(LOSSES, 7.0, seeds=[0]))["same?"]
    assert list(one) == ["open", "with new noise: open; replayed: open", "open"]


def test_bert_before_all_have_run():
    assert not len(conclusions.bert(made_bert({("seq", 1): 5.0, ("fr", 3): 5.0}, 7.0)))
