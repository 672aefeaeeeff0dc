"""What is fine-tuned, what it begins with, and the rows of the ablation."""

from dataclasses import replace

import pytest
import torch

from alkit.data.wordpiece import CLS, SEP, wordpiece
from alkit.elastic import Examples, Recipe, Settings
from studies.elastic import ablation as study
from studies.elastic.masking import IGNORED
from studies.elastic.pretrain import Plan, corpus, masked_examples, masked_words, pretrain
from studies.elastic.pretrained import begin, save_body
from studies.elastic.tasks import load_task
from tests.unit.elastic.helpers import make_vit, train


def test_pictures():
    task = load_task("digits", train=60, variants=2)
    assert len(task.train) == 60
    assert task.image == (1, 8)
    assert task.train.y.bincount().tolist() == [6] * 10
    first, second = (task.train.inputs(torch.arange(3), v) for v in (0, 1))
    assert not torch.equal(first, second)
    assert torch.equal(task.train.inputs(torch.arange(3), 2), first)
    # a sample's variant does not depend on the batch that it is in
    assert torch.equal(task.train.inputs(torch.tensor([2]), 1)[0], second[2])
    assert task.validation.variants == 0


def test_texts():
    task = load_task("pydocs", train=50, tokens=12, vocabulary=400)
    tokens, segments, mask = task.train.inputs(torch.arange(50))
    assert tokens.shape == (50, 12)
    assert (tokens[:, 0] == CLS).all()
    assert ((tokens == SEP).sum(1) == 1).all()
    assert torch.equal(mask, tokens != 0)
    assert not segments.any()
    scores = study.network_for(task, layers=2, width=16)(task.train.inputs(torch.arange(4)))
    assert scores.shape == (4, task.classes)


def test_a_body_goes_from_one_task_to_another_if_it_fits(tmp_path):
    first, second = make_vit(), make_vit()
    path = tmp_path / "body.safetensors"
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.add_(0.1)
    save_body(first, path, data="images", samples=24)
    said = begin(second, path)
    assert said == "52 of 56 tensors from body.safetensors (data images, samples 24)"
    assert torch.equal(first.units[6].up.weight, second.units[6].up.weight)
    assert not torch.equal(first.units[-1].scores.weight, second.units[-1].scores.weight)
    assert begin(second) == "random weights"
    with pytest.raises(FileNotFoundError, match="no weights at"):
        begin(make_vit(), tmp_path / "none")
    path = tmp_path / "body.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is damaged"):
        begin(make_vit(), path)
    save_body(make_vit(), path)
    other = study.network_for(load_task("digits", train=20), layers=4, width=32, patch=4)
    with pytest.raises(
        ValueError, match=r"has units\.0\.\S+ of .*16.*; in this network it is .*32"
    ):
        begin(other, path)


@pytest.fixture(scope="module")
def docstrings():
    """Return a corpus of five classes and its tokenizer."""
    found = corpus("pydocs", 300)
    assert sorted(set(found.labels)) == [0, 1, 2, 3, 4]
    assert found.classes == 5
    return found, wordpiece([line for d in found.documents for line in d], 300)


def test_words_are_restored_and_texts_named(docstrings):
    found, tokenizer = docstrings
    options = {"tokens": 16, "seed": 0, "labels": found.labels}
    data = masked_examples(found.documents, tokenizer, passes=2, **options)
    one = masked_examples(found.documents, tokenizer, passes=1, **options)
    assert len(data) == 2 * len(one)
    assert torch.equal(data.y[: len(one)], one.y)
    assert not torch.equal(data.y[len(one) :, :-1], one.y[:, :-1])  # other words are hidden
    assert torch.equal(data.y[len(one) :, -1], one.y[:, -1])
    sizes = study.text_sizes(2, 16, 2, tokenizer.get_vocab_size(), 16)
    network = masked_words(sizes, found.classes)
    options = {"freeze": "none", "cache": False, "epochs": 6, "batch": 8, "micro": 1}
    made = train(network, data, recipe=Recipe(lr=3e-3), **options)
    assert made.losses[-5:].mean() < made.losses[:5].mean() - 1.0
    scores_BC = network(one.inputs(torch.arange(len(one))))[1]
    assert (scores_BC.argmax(1) == one.y[:, -1]).double().mean() > 0.5  # by chance 0.2


def test_the_loss_of_pretraining(docstrings):
    """Words and classes, each a mean over what there is; texts without a class only have words."""
    found, tokenizer = docstrings
    sizes = study.text_sizes(2, 16, 2, tokenizer.get_vocab_size(), 16)
    network = masked_words(sizes, found.classes)
    data = masked_examples(found.documents, tokenizer, tokens=16, passes=1, seed=0)
    assert (data.y[:, -1] == IGNORED).all()
    scores = network(data.inputs(torch.arange(6)))
    words_BM, none_B = data.y[:6, :-1], data.y[:6, -1]
    words = pretraining_words(scores[0], words_BM)
    assert torch.allclose(network.loss(scores, data.y[:6]), words)
    label_B = none_B.clone()
    label_B[2], label_B[4] = 1, 3
    both = network.loss(scores, torch.cat([words_BM, label_B[:, None]], 1))
    log_BC = scores[1].log_softmax(1)
    assert torch.allclose(both, words - (log_BC[2, 1] + log_BC[4, 3]) / 2)


def pretraining_words(scores_BMV, words_BM):
    logs = scores_BMV.log_softmax(2)
    rows = [-logs[b, m, w] for b, m, w in _hidden(words_BM)]
    return sum(rows) / len(rows)


def _hidden(words_BM):
    return [(b, m, int(words_BM[b, m])) for b, m in (words_BM != IGNORED).nonzero().tolist()]


def test_texts_to_pretrain_on():
    """SST-2 keeps its classes back, for it is what the weights are tried on."""
    try:
        found = corpus("wikitext+sst2+imdb", 400)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    texts = [" ".join(document) for document in found.documents]
    assert {IGNORED, 0, 1} == set(found.labels)
    assert found.classes == 2
    assert all(label == IGNORED for label in corpus("sst2", 400).labels)
    assert not any("<br" in text for text in texts)
    with pytest.raises(ValueError, match="its parts have other classes"):
        corpus("pydocs+imdb", 50)


def test_variants_of_the_ablation_are_the_same_training():
    """Those that freeze end alike, whatever else is on; so does never freezing."""
    task = load_task("digits", train=64)
    settings = Settings(epochs=3, batch=16, recipe=Recipe(lr=3e-3), devices=2, micro=2)
    states = {}
    for name, options in study.VARIANTS.items():
        network = study.network_for(task, layers=4, width=16, patch=4).double()
        data = Examples(task.train.x.double(), task.train.y)
        made = replace(settings, **options)
        states[name] = train(network, data, settings=made).state
    freezing = [states[name] for name in study.VARIANTS if name not in ("1f1b", "head_cache")]
    for other in freezing[1:]:
        for key, tensor in other.items():
            torch.testing.assert_close(tensor, freezing[0][key], rtol=0, atol=1e-12)
    assert any(not torch.equal(states["1f1b"][k], v) for k, v in freezing[0].items())


def test_a_tokenizer_is_found_from_the_checkout(monkeypatch, tmp_path):
    """As in a notebook, which runs in another folder."""
    monkeypatch.chdir(tmp_path)
    found = load_task("pydocs", tokenizer="notebooks/results/weights/tokenizer.json", train=20)
    assert found.tokenizer.get_vocab_size() == 4096
    with pytest.raises(FileNotFoundError, match="no tokenizer at .*missing.json: give a file"):
        load_task("pydocs", tokenizer="missing.json")


@pytest.mark.parametrize(
    ("plan", "name"),
    [
        (Plan("pydocs", 1, 2e-3, sentences=300, vocabulary=600, tokens=8, width=16), "bert"),
        (Plan("digits", 1, 2e-3, width=16, patch=4), "vit"),
    ],
)
def test_pretraining_leaves_weights_that_a_network_begins_with(plan, name, tmp_path):
    made = pretrain(plan, tmp_path)
    assert made == tmp_path / f"{name}.safetensors"
    words = tmp_path / "tokenizer.json" if plan.texts else None
    task = load_task(plan.data, train=60, tokens=8, tokenizer=words)
    network = study.network_for(task, width=16, patch=4, seed=3)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    assert f"data {plan.data}" in begin(network, made)
    moved = [key for key, own in network.state_dict().items() if not torch.equal(own, before[key])]
    assert len(moved) > 12
    assert pretrain(plan, tmp_path) == made  # goes on from its checkpoint: nothing is left to do
