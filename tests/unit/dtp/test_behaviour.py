"""What training does, on digits; some minutes, so in `make soak`."""

import pytest

from studies.dtp import runs as dtp_training
from studies.dtp.presets import PRESETS


@pytest.mark.soak
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dtp_follows_backprop(seed):
    data = PRESETS["tiny_digits"].load(train=1000, test=360)
    made = {
        name: dtp_training.trained(name, "tiny_digits", data, seed, compare_every=8)
        for name in ("bp", "dtp", "dtp_exact", "dtp_fixed")
    }
    for name in ("dtp", "dtp_exact"):
        assert made[name].test_acc > made["bp"].test_acc - 0.03
        assert made[name].details.angles.angle.max() < 25
    assert made["dtp_fixed"].details.angles.angle[:3].min() > 60
    # 7.0, 11.1 and 10.3 points behind with these seeds
    assert made["dtp_fixed"].test_acc < made["dtp"].test_acc - 0.05
