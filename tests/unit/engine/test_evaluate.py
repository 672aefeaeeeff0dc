"""What is measured on a part: classes by who is right, other targets by the loss, own metrics."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy, dropout, mse_loss, one_hot

from alkit.data.parts import Pairs, Part
from alkit.engine.evaluate import judge, right

N, C = 21, 3
SCORES = torch.randn(N, C, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(N) % C
X = torch.arange(N)[:, None].float()
RIGHT = (SCORES.argmax(1) == LABELS).float()
ROWS = one_hot(LABELS, C).float()


def judged(y, loss=cross_entropy, scores=SCORES, batch_size=4, **options):
    model = SimpleNamespace(predict=lambda rows: scores[rows[:, 0].long()])
    part = y if isinstance(y, Part) else Pairs(X, y)
    return judge(model, part, loss=loss, batch_size=batch_size, **options)


@pytest.mark.parametrize(
    ("part", "y", "loss"),
    [
        (Part(X, LABELS, C), LABELS, cross_entropy),
        (ROWS, ROWS, cross_entropy),
        (ROWS, ROWS, mse_loss),
    ],
)
def test_classes_are_right_or_wrong_and_have_a_loss(part, y, loss):
    found = judged(part, loss)
    assert torch.equal(found.correct, RIGHT)
    assert torch.equal(found.scores, SCORES)
    expected = {"accuracy": RIGHT.mean().item(), "loss": loss(SCORES, y).item()}
    assert found.values == pytest.approx(expected, rel=1e-5)
    assert list(found.columns()) == ["val_acc", "val_loss"]


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_a_loss_is_over_what_counts(batch_size):
    """Batches differ in the labels that count, one has none; so it is with weights of classes."""
    y = torch.where(torch.arange(N) < 8, -100, LABELS)
    for loss in (cross_entropy, torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 2.0]))):
        found = judged(y, loss, batch_size=batch_size)
        assert found.values["loss"] == pytest.approx(loss(SCORES, y).item(), rel=1e-5)


def test_where_no_label_counts_or_a_score_is_no_number_there_is_no_loss():
    found = judged(torch.full((N,), -100))
    assert all(math.isnan(each) for each in found.values.values())
    spoilt = torch.where(X == 3, torch.nan, SCORES)
    assert math.isnan(judged(LABELS, scores=spoilt).values["loss"])


def test_a_loss_that_draws_is_the_same_each_time():
    loss = lambda scores, y: cross_entropy(dropout(scores, 0.5), y)  # noqa: E731
    assert judged(LABELS, loss).values == judged(LABELS, loss).values


# pictures with one thing on each, and labels for all things: columns that happen to add up to one
# are no classes to binary cross-entropy
NUMBERS = [(torch.randn(N, C), mse_loss), (ROWS, torch.nn.BCEWithLogitsLoss())]


@pytest.mark.parametrize("batch_size", [4, 100])
@pytest.mark.parametrize(("y", "loss"), NUMBERS)
def test_numbers_have_the_loss_of_all_samples(y, loss, batch_size):
    found = judged(y, loss, batch_size=batch_size)
    assert found.correct is None
    assert found.values == {"loss": pytest.approx(loss(SCORES, y).item(), rel=1e-5)}
    assert list(found.columns()) == ["val_loss"]


def test_numbers_are_refused_where_right_or_wrong_is_asked():
    with pytest.raises(ValueError, match="are no classes.*compare predict"):
        right(SCORES, torch.rand(N, 1))
    y = torch.where(X == 10, 1.0, ROWS)  # classes that later are none
    with pytest.raises(ValueError, match="are no classes, so no sample is right or wrong"):
        judged(y, mse_loss)


def test_own_metrics_see_the_whole_part():
    def rank_of_label(scores, y):
        return (scores > scores.gather(1, y[:, None])).sum(1).float().mean()

    found = judged(LABELS, metrics={"rank": rank_of_label, "samples": lambda s, y: len(s) + len(y)})
    assert found.values["rank"] == pytest.approx(rank_of_label(SCORES, LABELS).item())
    assert found.values["samples"] == 2 * N


@pytest.mark.parametrize("last", [False, True])
def test_classes_of_places_are_right_by_place(last):
    """Pixels have their classes on axis 1, tokens of a loss of one's own may have them last."""
    scores = torch.zeros(2, 3, 4)
    scores[:, 1] = 1.0
    y = torch.tensor([[1, 1, 1, 0], [1, 2, 0, 2]])
    found = right(scores.movedim(1, -1) if last else scores, y)
    assert found.tolist() == [0.75, 0.25]
