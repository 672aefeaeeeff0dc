"""What is fine-tuned, what it begins with, and the rows of the ablation."""

import json

import pytest
import safetensors.torch
import torch

from alkit.data.parts import Pairs
from studies.elastic import ablation as study
from studies.elastic.recipe import begin, recipe
from studies.elastic.tasks import CLS, SEP, load_task
from tests.unit.elastic.helpers import close, make_vit, train


def test_pictures_and_texts():
    task = load_task("digits", train=60)
    assert task.image == (1, 8)
    assert task.train.y.bincount().tolist() == [6] * 10
    task = load_task("pydocs", train=50, tokens=12)
    tokens, segments, mask = task.train.x
    assert tokens.shape == (50, 12)
    assert (tokens[:, 0] == CLS).all()
    assert ((tokens == SEP).sum(1) == 1).all()
    assert torch.equal(mask, tokens != 0)
    assert not segments.any()
    scores = study.network_for(task, layers=2, width=16)([own[:4] for own in task.train.x])
    assert scores.shape == (4, task.classes)


def test_a_body_goes_from_one_task_to_another_if_it_fits(tmp_path):
    first, second = make_vit(), make_vit()
    path = tmp_path / "body.safetensors"
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.add_(0.1)
    body = first.units[: 1 + first.units_a_layer * first.layers].state_dict()
    state, about = {f"units.{name}": own for name, own in body.items()}, {"data": "images"}
    safetensors.torch.save_file(state, path, {"about": json.dumps(about)})
    assert begin(second, path) == "52 of 56 tensors from body.safetensors (data images)"
    assert torch.equal(first.units[6].f[0].weight, second.units[6].f[0].weight)
    assert not torch.equal(first.units[-1][-1].weight, second.units[-1][-1].weight)
    assert begin(second) == "random weights"
    with pytest.raises(FileNotFoundError, match="no weights at"):
        begin(make_vit(), tmp_path / "none")


def test_variants_of_the_ablation_are_the_same_training():
    """Those that freeze end alike, whatever else is on; so does never freezing."""
    task = load_task("digits", train=64)
    settings = recipe(3e-3, samples=64, epochs=3, batch=16) | {"workers": 2, "micro": 2}
    data, ends = Pairs(task.train.x.double(), task.train.y), {}
    for name, options in study.VARIANTS.items():
        network = study.network_for(task, layers=2, width=16, patch=4).double()
        ends[name] = train(network, data, settings | options)
    for name in ends.keys() - {"1f1b", "head_cache"}:
        close(ends[name], ends["elastic"])
    with pytest.raises(AssertionError):
        close(ends["1f1b"], ends["elastic"], 1e-6)


def test_a_tokenizer_is_found_from_the_checkout(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = load_task("pydocs", tokenizer="notebooks/results/weights/tokenizer.json", train=20)
    assert found.tokenizer.get_vocab_size() == 4096
    with pytest.raises(FileNotFoundError, match="no tokenizer at .*missing.json: give a file"):
        load_task("pydocs", tokenizer="missing.json")
