"""What training does, on digits; some minutes, so in `make soak`."""

import pytest

from studies.dtp import runs as dtp_training
from studies.dtp.angles import compare
from studies.dtp.presets import PRESETS


@pytest.mark.soak
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dtp_follows_backprop(seed):
    data = PRESETS["tiny_digits"].load(train=1000, test=360)
    made = {
        name: dtp_training.trained(name, "tiny_digits", data, seed)
        for name in ("bp", "dtp", "dtp_fixed")
    }
    batch = next(iter(data.validation.batches(256, shuffle=False)))
    angles = {name: compare(made[name].model, *batch).angle for name in ("dtp", "dtp_fixed")}
    assert made["dtp"].test_acc > made["bp"].test_acc - 0.03
    assert angles["dtp"].max() < 25
    assert angles["dtp_fixed"][:3].min() > 60
    # 7.0, 11.1 and 10.3 points behind with these seeds
    assert made["dtp_fixed"].test_acc < made["dtp"].test_acc - 0.05
