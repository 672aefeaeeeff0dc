"""Bridges of convolutions: not narrow where blocks are, not wider than the code they make."""

import pytest
import torch
from torch import nn

from alkit import to_al


@pytest.mark.parametrize(("channels", "width"), [(8, 64), (100, 100), (300, 128)])
def test_width_of_a_conv_bridge(channels, width):
    sample = torch.zeros(2, 3, 16, 16)
    model = to_al([nn.Conv2d(3, channels, 1)], num_classes=5, sample=sample, code_dim=128)
    widths = {m.out_channels for m in model[0].enc.b.modules() if isinstance(m, nn.Conv2d)}
    assert widths == {width}
    assert model[0].enc.b(torch.zeros(2, channels, 16, 16)).shape == (2, 128)
