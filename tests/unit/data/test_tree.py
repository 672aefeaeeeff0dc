"""What is near: other kernels' rounding, not other numbers."""

import pytest
import torch

from alkit.base.tree import near


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64])
def test_a_tensor_is_near_itself_and_rounding_near_zero_is_near(dtype):
    x = (torch.randn(8, 8) * 10).to(dtype)
    assert near(x, x.clone())
    assert not near(x, 2 * x)
    assert not near(x, x[:4])
    # as an accelerator's convolutions round: each number by itself would be far
    x = torch.randn(1000)
    other = x + 1e-3 * torch.randn(1000)
    assert not torch.allclose(x, other, rtol=1e-2)
    assert near(x, other, 1e-2)
    assert near(x, x + 1e-4 * torch.randn(1000))
    assert not near(x, x + 0.005)
    assert not near(x, x + 0.1, 1e-2)
    assert not near(torch.zeros(4), torch.ones(4))


@pytest.mark.parametrize("none", [float("nan"), float("inf")])
def test_what_is_no_number_must_be_in_the_same_places(none):
    x = torch.tensor([1.0, none, 2.0])
    assert near(x, x.clone())
    assert not near(x, torch.tensor([1.0, 1.0, 2.0]))
    assert not near(torch.tensor([1.0, 1.0, 2.0]), x)
