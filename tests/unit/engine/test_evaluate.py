"""What is measured on a part: classes by who is right, other targets by the loss, own metrics."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy, dropout, mse_loss, one_hot

from alkit.data.parts import Pairs, Part
from alkit.engine.evaluate import evaluate, judge, right

N, C = 21, 3
SCORES = torch.randn(N, C, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(N) % C
CLOSE = {"rel": 1e-5}


def gives(x):
    return SimpleNamespace(predict=lambda rows: x[rows[:, 0].long()])


MODEL = gives(SCORES)
X = torch.arange(N)[:, None].float()
RIGHT = (SCORES.argmax(1) == LABELS).float()


ROWS = one_hot(LABELS, C).float()


@pytest.mark.parametrize(
    ("y", "loss"),
    [(LABELS, cross_entropy), (ROWS, cross_entropy), (ROWS, mse_loss)],
)
def test_classes_are_right_or_wrong_and_have_a_loss(y, loss):
    part = Part(X, LABELS, C) if y is LABELS else Pairs(X, y)
    found = judge(MODEL, part, loss=loss, batch_size=4)
    assert torch.equal(found.correct, RIGHT)
    assert torch.equal(found.scores, SCORES)
    expected = {"accuracy": RIGHT.mean().item(), "loss": loss(SCORES, y).item()}
    assert found.values == pytest.approx(expected, **CLOSE)
    assert list(found.columns()) == ["val_acc", "val_loss"]


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_a_loss_is_over_what_counts(batch_size):
    """Batches differ in the labels that count, one has none; so it is with weights of classes."""
    y = torch.where(torch.arange(N) < 8, -100, LABELS)
    for loss in (cross_entropy, torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 2.0]))):
        found = judge(MODEL, Pairs(X, y), loss=loss, batch_size=batch_size)
        assert found.values["loss"] == pytest.approx(loss(SCORES, y).item(), **CLOSE)


def test_where_no_label_counts_there_is_no_loss():
    found = judge(MODEL, Pairs(X, torch.full((N,), -100)), loss=cross_entropy, batch_size=4)
    assert all(math.isnan(each) for each in found.values.values())


def test_a_loss_that_draws_is_the_same_each_time_and_moves_nobody_s_generator():
    loss = lambda scores, y: cross_entropy(dropout(scores, 0.5), y)  # noqa: E731
    before = torch.get_rng_state()
    one, two = (judge(MODEL, Pairs(X, LABELS), loss=loss).values["loss"] for _ in range(2))
    assert one == two
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loss_that_is_no_number_stays_one():
    scores = SCORES.clone()
    scores[3, 0] = torch.nan
    assert math.isnan(judge(gives(scores), Pairs(X, LABELS), loss=cross_entropy).values["loss"])


@pytest.mark.parametrize("batch_size", [4, 100])
@pytest.mark.parametrize(
    ("y", "loss"),
    [
        (torch.randn(N, C), mse_loss),
        # pictures with one thing on each, and labels for all things: columns that happen to
        # add up to one are no classes to binary cross-entropy
        (one_hot(LABELS, C).float(), torch.nn.BCEWithLogitsLoss()),
    ],
)
def test_numbers_have_the_loss_of_all_samples(y, loss, batch_size):
    found = judge(MODEL, Pairs(X, y), loss=loss, batch_size=batch_size)
    assert found.correct is None
    assert found.values == {"loss": pytest.approx(loss(SCORES, y).item(), **CLOSE)}
    assert list(found.columns()) == ["val_loss"]


def test_numbers_are_refused_where_right_or_wrong_is_asked():
    with pytest.raises(ValueError, match="compare predict"):
        evaluate(MODEL, (X, torch.randn(N, C)))
    with pytest.raises(ValueError, match="are no classes"):
        right(SCORES, torch.rand(N, 1))
    y = one_hot(LABELS, C).float()
    y[10] = 1.0  # classes that later are none
    with pytest.raises(ValueError, match="are no classes, so no sample is right or wrong"):
        judge(MODEL, Pairs(X, y), loss=mse_loss, batch_size=4)


def test_own_metrics_see_the_whole_part():
    seen = []

    def rank_of_label(scores, y):
        seen.append((scores.shape, y.shape))
        return (scores > scores.gather(1, y[:, None])).sum(1).float().mean()

    metrics = {"rank": rank_of_label}
    found = judge(MODEL, Pairs(X, LABELS), loss=cross_entropy, metrics=metrics, batch_size=4)
    assert seen == [((N, C), (N,))]
    assert found.values["rank"] == pytest.approx(rank_of_label(SCORES, LABELS).item())
    assert torch.equal(found.correct, RIGHT)


def test_anything_that_gives_pairs_can_be_evaluated():
    rows = list(zip(X, LABELS, strict=True))
    loader = torch.utils.data.DataLoader(rows, batch_size=4)
    for part in ((X, LABELS), loader, [(X, LABELS)]):
        assert torch.equal(evaluate(MODEL, part), RIGHT)


@pytest.mark.parametrize("last", [False, True])
def test_classes_of_places_are_right_by_place(last):
    """Pixels have their classes on axis 1, tokens of a loss of one's own may have them last."""
    scores = torch.zeros(2, 3, 4)
    scores[:, 1] = 1.0
    y = torch.tensor([[1, 1, 1, 0], [1, 2, 0, 2]])
    found = right(scores.movedim(1, -1) if last else scores, y)
    assert found.tolist() == [0.75, 0.25]
