"""Parts of a batch, weighed, add up to its loss; where nobody knows how, that is said."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alkit.engine.reduction import says_reduction, shares

G = torch.Generator().manual_seed(0)
SCORES, Y = torch.randn(10, 3, generator=G), torch.randint(3, (10,), generator=G)
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


class Doubled(nn.CrossEntropyLoss):
    def forward(self, scores, y):
        return 2 * super().forward(scores, y)


class Squares(nn.MSELoss):
    def forward(self, scores, y):
        return (scores - F.one_hot(y, 3).float()).square().sum(1).mean()


KNOWN = {
    "ignored": (nn.CrossEntropyLoss(), IGNORED),
    "weights": (nn.CrossEntropyLoss(weight=W), Y),
    "weights, ignored": (nn.CrossEntropyLoss(weight=W, label_smoothing=0.1), IGNORED),
    "a subclass": (Named(weight=W), IGNORED),
    "a subclass with a forward": (Focal(), Y),
    "one with weights": (Focal(weight=W), Y),
    "one that ignores labels": (Focal(), IGNORED),
    "one that is torch's at last": (Doubled(weight=W), IGNORED),
    "a sum": (nn.CrossEntropyLoss(weight=W, reduction="sum"), IGNORED),
    "of elements": (nn.MSELoss(), SCORES.flip(0)),
    "a subclass of elements'": (Squares(), Y),
    "batchmean": (nn.KLDivLoss(reduction="batchmean"), SCORES.softmax(1)),
}


@pytest.mark.parametrize("what", KNOWN)
def test_parts_add_up(what):
    loss, y = KNOWN[what]
    assert says_reduction(loss)
    weights = shares(loss, [y[part] for part in PARTS])
    found = sum(w * loss(SCORES[part], y[part]) for w, part in zip(weights, PARTS, strict=True))
    torch.testing.assert_close(found, loss(SCORES, y))


def test_a_batch_in_which_no_label_counts_is_no_trial():
    """A mean of nothing says nothing about what a mean is over."""
    nothing = torch.full_like(Y, -100)
    found = shares(Doubled(weight=W), [nothing[part] for part in PARTS])
    assert found == shares(nn.CrossEntropyLoss(weight=W), [nothing[part] for part in PARTS])


def test_a_mean_over_something_else_is_refused_in_parts():
    class Odd(nn.CrossEntropyLoss):
        def forward(self, scores, y):
            return super().forward(scores, y) / len(y)

    with pytest.raises(ValueError, match="neither torch's nor that of samples"):
        shares(Odd(weight=W), [Y[part] for part in PARTS])
    assert shares(Odd(weight=W), [Y]) == [1.0]
