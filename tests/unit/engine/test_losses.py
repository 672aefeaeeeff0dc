"""What is measured on a part of the data, and how losses of parts of a batch add up."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from alkit.data.parts import Pairs, Part
from alkit.engine.evaluate import judge, right
from alkit.engine.losses import check_finite, check_reduction, shares

N, C = 21, 3
SCORES = torch.randn(N, C, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(N) % C
X = torch.arange(N)[:, None].float()
RIGHT = (SCORES.argmax(1) == LABELS).float()
ROWS = one_hot(LABELS, C).float()


def judged(y, loss=cross_entropy, batch_size=4, **options):
    model = SimpleNamespace(predict=lambda rows: SCORES[rows[:, 0].long()])
    part = y if isinstance(y, Part) else Pairs(X, y)
    return judge(model, part, loss=loss, batch_size=batch_size, **options)


CLASSES = [
    (Part(X, LABELS, C), LABELS, cross_entropy),
    (ROWS, ROWS, cross_entropy),
    (ROWS, ROWS, mse_loss),
]


@pytest.mark.parametrize(("part", "y", "loss"), CLASSES)
def test_classes_are_right_or_wrong_and_have_a_loss(part, y, loss):
    found = judged(part, loss, metrics={"own": lambda scores, own: scores[range(N), own].sum()})
    assert torch.equal(found.correct, RIGHT)
    assert torch.equal(found.scores, SCORES)
    expected = {"accuracy": RIGHT.mean().item(), "loss": loss(SCORES, y).item()}
    expected["own"] = SCORES[range(N), LABELS].sum().item()
    assert found.values == pytest.approx(expected, rel=1e-5)
    assert list(found.columns()) == ["val_acc", "val_loss", "val_own"]


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_a_loss_is_over_what_counts(batch_size):
    """Batches differ in the labels that count, one has none; so it is with weights of classes."""
    y = torch.where(torch.arange(N) < 8, -100, LABELS)
    for loss in (cross_entropy, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 2.0]))):
        found = judged(y, loss, batch_size=batch_size)
        assert found.values["loss"] == pytest.approx(loss(SCORES, y).item(), rel=1e-5)


# pictures with one thing on each, and labels for all things: columns that happen to add up to one
# are no classes to binary cross-entropy
NUMBERS = [(torch.randn(N, C), mse_loss), (ROWS, nn.BCEWithLogitsLoss())]


@pytest.mark.parametrize("batch_size", [4, 100])
@pytest.mark.parametrize(("y", "loss"), NUMBERS)
def test_numbers_have_the_loss_of_all_samples(y, loss, batch_size):
    found = judged(y, loss, batch_size=batch_size)
    assert found.correct is None
    assert found.values == {"loss": pytest.approx(loss(SCORES, y).item(), rel=1e-5)}
    assert list(found.columns()) == ["val_loss"]


@pytest.mark.parametrize("last", [False, True])
def test_classes_of_places_are_right_by_place(last):
    """Pixels have their classes on axis 1, tokens of a loss of one's own may have them last."""
    scores = torch.zeros(2, 3, 4)
    scores[:, 1] = 1.0
    y = torch.tensor([[1, 1, 1, 0], [1, 2, 0, 2]])
    found = right(scores.movedim(1, -1) if last else scores, y)
    assert found.tolist() == [0.75, 0.25]


IGNORED = torch.where(torch.arange(N) % 4 == 0, -100, LABELS)
W = torch.tensor([0.1, 1.0, 5.0])
PARTS = [slice(0, 3), slice(3, 6), slice(6, N)]


class Named(nn.CrossEntropyLoss):
    """With another name alone."""


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


def test_a_loss_that_is_not_finite_is_named():
    losses = torch.ones(6, 2, 2)
    check_finite(losses, None, losses[:, 0, 0])
    losses[4, 1, 0] = torch.nan
    said = r"the loss is nan at batch 4 of the epoch, layer and part \[1, 0\]: lower"
    with pytest.raises(FloatingPointError, match=said):
        check_finite(None, losses)
