"""TF-IDF with logistic regression, against scikit-learn's own pipeline on the same words."""

import numpy as np
import pytest

from alkit.data import datasets
from studies.al import baselines


def test_equals_scikit_learns_pipeline():
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    data = datasets.load("pydocs").subset(train=600)

    def texts(part):
        return [" ".join(f"w{word}" for word in row if word) for row in part.x.tolist()]

    pipeline = make_pipeline(
        TfidfVectorizer(sublinear_tf=True), LogisticRegression(C=3.0, max_iter=1000)
    )
    pipeline.fit(texts(data.train), data.train.y.numpy())
    expected = pipeline.predict(texts(data.test)) == data.test.y.numpy()
    found = baselines.tfidf(data, strengths=[3.0])
    assert np.mean(found.test_correct.numpy() == expected) > 0.995
    assert found.test_acc > 0.5
    assert found.strength == 3.0


def test_the_penalty_is_chosen_on_validation_and_images_are_refused():
    data = datasets.load("pydocs").subset(train=300)
    assert baselines.tfidf(data, strengths=[1e-6, 10.0]).strength == 10.0
    with pytest.raises(ValueError, match="digits holds no texts"):
        baselines.tfidf(datasets.load("digits"))
