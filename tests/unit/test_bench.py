"""Interleaving, ratios round by round, and pages that are rewritten between their marks."""

import pytest
import torch

from alkit import train_epoch
from alkit.bench import busy_task_s, compare, interleaved
from alkit.publish import replace_section
from alkit.timeline import Timeline
from alkit.train import EpochRecord
from tests.helpers import dense_model, made_batches


def _fake(order, name, seconds):
    def run():
        order.append(name)
        return EpochRecord(torch.zeros(1, 1, 2), Timeline((), ()), 10, next(seconds))

    return run


def test_rounds_are_interleaved_and_ratios_are_taken_within_a_round():
    order = []
    runs = interleaved(
        {
            "slow": _fake(order, "slow", iter([9.0, 4.0, 40.0, 4.0])),
            "fast": _fake(order, "fast", iter([2.0, 20.0, 1.0])),
        },
        3,
        progress=False,
    )
    assert order == ["slow"] + ["slow", "fast"] * 3
    table = compare(runs, over="slow").set_index("name")
    assert table.loc["fast", ["speedup", "lowest", "highest"]].tolist() == [2.0, 2.0, 4.0]
    assert table.loc["slow", "speedup"] == 1.0
    assert table.loc["fast", "samples_s"] == 5.0


def test_busy_times_cover_all_tasks():
    seconds = busy_task_s(lambda: train_epoch(dense_model(2), made_batches(4), "al"))
    assert set(seconds) == {(k, i) for k in ("forward", "backward", "update") for i in (0, 1)}
    assert min(seconds.values()) > 0


def test_sections_are_replaced_between_their_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- t -->\nold\n<!-- /t -->\nb\n")
    replace_section(page, "t", "new")
    replace_section(page, "t", "newer")
    assert page.read_text() == "a\n<!-- t -->\nnewer\n<!-- /t -->\nb\n"
    assert list(tmp_path.iterdir()) == [page]
    with pytest.raises(ValueError, match="needs the marks"):
        replace_section(page, "u", "x")
