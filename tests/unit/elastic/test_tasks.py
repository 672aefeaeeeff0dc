"""What is fine-tuned, what it begins with, and the rows of the ablation."""

from dataclasses import replace

import pytest
import torch

from alkit.elastic import Examples, Recipe, Settings, study
from alkit.elastic.pretrain import corpus, masked_examples, masked_words
from alkit.elastic.pretrained import begin, save_body
from alkit.elastic.tasks import load_task
from alkit.elastic.train import train
from alkit.models.bert import BertSizes
from alkit.wordpiece import CLS, SEP, wordpiece
from tests.unit.elastic.helpers import make_vit


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


def test_bad_tasks_and_examples():
    with pytest.raises(ValueError, match="give digits, cifar10"):
        load_task("letters")
    with pytest.raises(ValueError, match="3 samples.*2 labels|give as many"):
        Examples(torch.zeros(3, 2), torch.zeros(2))
    with pytest.raises(ValueError, match="variants are for images"):
        Examples(torch.zeros(3, 2), torch.zeros(3), variants=2)


def test_a_body_goes_from_one_task_to_another(tmp_path):
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


def test_weights_that_are_not_there_or_do_not_fit(tmp_path):
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


def test_words_are_restored():
    documents = corpus("pydocs", 60)
    tokenizer = wordpiece([line for d in documents for line in d], 300)
    data = masked_examples(documents, tokenizer, tokens=16, passes=2, seed=0)
    one = masked_examples(documents, tokenizer, tokens=16, passes=1, seed=0)
    assert len(data) > 1.5 * len(one)
    sizes = BertSizes(2, 16, 2, 32, tokenizer.get_vocab_size(), 16, dropout=0.0)
    found = train(masked_words(sizes), data, freeze="none", cache=False, epochs=6, batch=8,
                  recipe=Recipe(lr=3e-3), progress=False)  # fmt: skip
    assert found.losses[-5:].mean() < found.losses[:5].mean() - 0.5
    with pytest.raises(ValueError, match="give pydocs or wikitext"):
        corpus("bible")


def test_variants_of_the_ablation_are_the_same_training():
    """Those that freeze end alike, whatever else is on; so does never freezing."""
    task = load_task("digits", train=64)
    settings = Settings(epochs=3, batch=16, recipe=Recipe(lr=3e-3), devices=2, micro=2)
    states = {}
    for name, options in study.VARIANTS.items():
        network = study.network_for(task, layers=4, width=16, patch=4).double()
        data = Examples(task.train.x.double(), task.train.y)
        made = replace(settings, **options)
        states[name] = train(network, data, settings=made, progress=False).state
    freezing = [states[name] for name in study.VARIANTS if name != "1f1b"]
    for other in freezing[1:]:
        for key, tensor in other.items():
            torch.testing.assert_close(tensor, freezing[0][key], rtol=0, atol=1e-12)
    assert any(not torch.equal(states["1f1b"][k], v) for k, v in freezing[0].items())
    with pytest.raises(ValueError, match="give 1f1b, freeze, .*ddp, fsdp"):
        study.measured("all", network, task, settings)


def test_a_tokenizer_is_found_from_the_checkout(monkeypatch, tmp_path):
    """As in a notebook, which runs in another folder."""
    monkeypatch.chdir(tmp_path)
    found = load_task("pydocs", tokenizer="notebooks/results/weights/tokenizer.json", train=20)
    assert found.tokenizer.get_vocab_size() == 4096
    with pytest.raises(FileNotFoundError, match="no tokenizer at .*missing.json: give a file"):
        load_task("pydocs", tokenizer="missing.json")
