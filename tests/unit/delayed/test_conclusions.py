"""Conclusions from made records: what is said of them, and what is left open."""

import pandas as pd
import torch

from alkit.delayed import conclusions
from alkit.study import pack


def made_resnet(points: dict[tuple[str, int], float]) -> pd.DataFrame:
    """Records of runs whose accuracies are these, on the same 1,000 samples."""
    rows = []
    for (method, modules), accuracy in points.items():
        correct = torch.arange(1000) < 10 * accuracy
        labels = {"method": method, "modules": modules, "lr": 0.1, "seed": 0, "data": "made"}
        labels |= {"recipe": f"K={modules}", "model": "resnet20", "n": 1000}
        for metric, value in (
            ("accuracy", accuracy), ("val_best", accuracy), ("diverged", False),
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
    assert same["2 modules: FR behind PipeDream"] in ("open", "no")
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


def made_bert(losses: dict[tuple[str, int], float], too_large: float) -> pd.DataFrame:
    """Runs at two rates; at the larger one stale methods end at `too_large`."""
    rows = []
    for (method, modules), loss in losses.items():
        for lr in (0.1, 1.0):
            labels = {"method": method, "modules": modules, "lr": lr}
            ends = too_large if lr == 1.0 and method != "seq" else loss
            rows.append(labels | {"metric": "final_loss", "value": ends})
            rows.append(labels | {"metric": "diverged", "value": False})
    return pd.DataFrame(rows)


LOSSES = {("seq", 1): 5.0, ("pipedream", 3): 5.05, ("fr", 3): 5.0, ("fr, new noise", 3): 6.0}


def test_bert():
    found = conclusions.bert(made_bert(LOSSES, 7.0))
    same = list(found["same?"])
    assert same == ["yes", "with new noise: yes; replayed: not shown", "yes"]
    assert found.ours.iloc[2].startswith("at 1 it ends at 5.00, 3 of 3 stale runs at 7.00")
    assert conclusions.bert(made_bert(LOSSES, 5.0))["same?"].iloc[2] == "no"


def test_bert_before_all_have_run():
    assert not len(conclusions.bert(made_bert({("seq", 1): 5.0, ("fr", 3): 5.0}, 7.0)))
