"""Parts of a batch, weighed, add up to its loss; where nobody knows how, that is said."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit.engine.losses import check_reduction, shares

SCORES = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(10) * 7 % 3
IGNORED = torch.where(torch.arange(10) % 4 == 0, -100, Y)
W = torch.tensor([0.1, 1.0, 5.0])
PARTS = [slice(0, 3), slice(3, 6), slice(6, 10)]


class Named(nn.CrossEntropyLoss):
    """With another name alone."""


class Focal(nn.CrossEntropyLoss):
    """As it is mostly written: the mean is over samples, whatever their classes weigh."""

    def forward(self, scores, y):
        each = F.cross_entropy(scores, y, weight=self.weight, reduction="none")
        return ((1 - (-each).exp()) ** 2 * each).mean()


KNOWN = {
    "ignored": (nn.CrossEntropyLoss(), IGNORED),
    "weights, ignored": (nn.CrossEntropyLoss(weight=W, label_smoothing=0.1), IGNORED),
    "a subclass": (Named(weight=W), IGNORED),
    "a sum": (nn.CrossEntropyLoss(weight=W, reduction="sum"), IGNORED),
    "of elements": (nn.MSELoss(), SCORES.flip(0)),
    "batchmean": (nn.KLDivLoss(reduction="batchmean"), SCORES.softmax(1)),
}


@pytest.mark.parametrize(("loss", "y"), KNOWN.values(), ids=KNOWN)
def test_parts_add_up(loss, y):
    check_reduction(loss)
    weights = zip(shares(loss, [y[part] for part in PARTS]), PARTS, strict=True)
    found = sum(weight * loss(SCORES[part], y[part]) for weight, part in weights)
    torch.testing.assert_close(found, loss(SCORES, y))


@pytest.mark.parametrize("loss", [Focal(), Focal(weight=W)], ids=str)
def test_a_subclass_with_a_forward_of_its_own_is_not_cut(loss):
    with pytest.raises(ValueError, match="does not say what it is over.*give micro=1"):
        check_reduction(loss)
    assert shares(loss, [Y]) == [1.0]
    loss.reduction = "sum"
    check_reduction(loss)
