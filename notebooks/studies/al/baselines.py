"""What a user would try first on texts: TF-IDF and logistic regression.

N texts, V rows of the vocabulary, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from alkit.data.parts import DataSet, Part

STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0)  # inverse of the L2 penalty


@dataclass(frozen=True)
class Tfidf:
    """What TF-IDF with logistic regression came to.

    Attributes:
        strength: inverse of the penalty, the best on validation.
        val_acc: share of the validation part that is right.
        test_correct: float (N,), 0 or 1.
    """

    strength: float
    val_acc: float
    test_correct: Tensor

    @property
    def test_acc(self) -> float:
        """Share of the test part that is right."""
        return self.test_correct.mean().item()


def word_counts(part: Part, rows: int) -> csr_matrix:
    """Count the words of each text, a sparse (N, V); padding counts for nothing."""
    texts_N, places_N = (part.x != part.pad).nonzero(as_tuple=True)
    words = part.x[texts_N, places_N].numpy()
    ones = np.ones(len(words), dtype=np.float32)
    return csr_matrix((ones, (texts_N.numpy(), words)), shape=(len(part), rows))


def tfidf(data: DataSet, strengths: Sequence[float] = STRENGTHS) -> Tfidf:
    """Fit on the training part, choose the penalty on validation, and look at the test part once.

    Load the data with a large `max_len` and `max_size`: this model takes whole texts.

    Raises:
        ValueError: the set holds no texts.
    """
    from sklearn.feature_extraction.text import TfidfTransformer  # lazily: they take a second
    from sklearn.linear_model import LogisticRegression

    if not data.train.is_text:
        raise ValueError(f"{data.name} holds no texts: TF-IDF counts words")
    transform = TfidfTransformer(sublinear_tf=True)
    parts = (data.train, data.validation, data.test)
    counts = [word_counts(part, len(data.vocabulary)) for part in parts]
    seen = counts[0].getnnz(axis=0) > 0  # a word that no training text has says nothing
    train, held, test = (part[:, seen] for part in counts)
    train = transform.fit_transform(train)
    held = transform.transform(held)
    best: tuple[float, float, LogisticRegression] | None = None
    for strength in strengths:
        model = LogisticRegression(C=strength, max_iter=1000).fit(train, data.train.y.numpy())
        accuracy = float(model.score(held, data.validation.y.numpy()))
        if best is None or accuracy > best[0]:
            best = accuracy, strength, model
    accuracy, strength, model = best
    guesses = model.predict(transform.transform(test))
    correct = torch.from_numpy(guesses == data.test.y.numpy()).float()
    return Tfidf(strength, accuracy, correct)
