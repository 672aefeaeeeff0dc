"""What training does, on digits; some minutes, so in `make soak`."""

import pytest

from studies.dtp import runs as dtp_training
from studies.dtp.presets import PRESETS


@pytest.mark.soak
def test_dtp_follows_backprop():
    data = PRESETS["tiny_digits"].load(train=1000, test=360)
    made = {
        name: dtp_training.trained(name, "tiny_digits", data, 0, compare_every=8)
        for name in ("bp", "dtp", "dtp_exact", "dtp_fixed")
    }
    for name in ("dtp", "dtp_exact"):
        assert made[name].test_acc > made["bp"].test_acc - 0.03
        assert made[name].angles.angle.max() < 25
    assert made["dtp_fixed"].angles.angle[:3].min() > 60
    assert made["dtp_fixed"].test_acc < made["dtp"].test_acc - 0.1
