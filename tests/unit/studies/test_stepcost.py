"""What a step costs: the right contenders, memory of a process of its own."""

import pytest
import torch

from studies.common import step_cost

SIZES = {"vgg": {"width": 0.0625}, "transformer": {"blocks": 1, "width": 12, "heads": 6, "ffn": 8}}


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.parametrize("recipe", ["original", "fixed_codes", ""])
def test_every_setting_trains(family, recipe):
    options = {"classes": 5, "batch_size": 4, "steps": 2, "tokens": 6, "sizes": SIZES[family]}
    setting = step_cost.Setting(family, recipe, recipe == "original", **options)
    record = setting.run()
    assert record.samples == 8
    assert torch.isfinite(record.losses).all()
    assert setting.label == (f"al {recipe}" if recipe else "bp")


def test_memory_is_that_of_the_run_alone_and_speed_is_over_the_one_that_was_named():
    # 64 x 1024 x 1024 floats held here must not count there
    ballast = torch.ones(64, 1024, 1024)
    options = {"classes": 5, "steps": 1, "sizes": {"width": 0.0625}}
    settings = [
        step_cost.Setting("vgg", recipe, batch_size=size, **options)
        for recipe, size in (("original", 2), ("fixed_codes", 256))
    ]
    table = step_cost.compare(settings, over="al original", repeats=2).set_index("label")
    assert table.speedup["al original"] == 1.0
    assert table.n.tolist() == [2, 2]
    few, many = table.peak_mib["al original"], table.peak_mib["al fixed_codes"]
    assert 0 < few < 1024
    assert many > few + 50
    assert ballast.numel() == 2**26


def test_texts_are_as_long_as_those_of_their_set():
    setting = step_cost.Setting(
        "lstm", "fixed_codes", batch_size=32, tokens=30, sizes={"hidden": 4}
    )
    (_, mask), _ = next(iter(setting._data().train.batches(32)))
    lengths = mask.sum(1)
    assert 8 <= lengths.min() < lengths.float().mean() < lengths.max() <= 30
