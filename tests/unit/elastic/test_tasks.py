"""What is fine-tuned, what it begins with, and the rows of the ablation."""

import json

import pytest
import safetensors.torch
import torch

from alkit.data.parts import Pairs
from studies.elastic import ablation as study
from studies.elastic.pretrained import begin
from studies.elastic.recipe import recipe
from studies.elastic.tasks import CLS, SEP, load_task
from tests.unit.elastic.helpers import make_vit, train


def test_pictures():
    task = load_task("digits", train=60)
    assert len(task.train) == 60
    assert task.image == (1, 8)
    assert task.train.y.bincount().tolist() == [6] * 10


def test_texts():
    task = load_task("pydocs", train=50, tokens=12)
    tokens, segments, mask = task.train.x
    assert tokens.shape == (50, 12)
    assert (tokens[:, 0] == CLS).all()
    assert ((tokens == SEP).sum(1) == 1).all()
    assert torch.equal(mask, tokens != 0)
    assert not segments.any()
    scores = study.network_for(task, layers=2, width=16)([own[:4] for own in task.train.x])
    assert scores.shape == (4, task.classes)


def save(network, path, **about):
    body = network.units[: 1 + network.units_a_layer * network.layers]
    state = {f"units.{name}": own for name, own in body.state_dict().items()}
    safetensors.torch.save_file(state, path, {"about": json.dumps(about)})


def test_a_body_goes_from_one_task_to_another_if_it_fits(tmp_path):
    first, second = make_vit(), make_vit()
    path = tmp_path / "body.safetensors"
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.add_(0.1)
    save(first, path, data="images", samples=24)
    said = begin(second, path)
    assert said == "52 of 56 tensors from body.safetensors (data images, samples 24)"
    assert torch.equal(first.units[6].f[0].weight, second.units[6].f[0].weight)
    assert not torch.equal(first.units[-1][-1].weight, second.units[-1][-1].weight)
    assert begin(second) == "random weights"
    with pytest.raises(FileNotFoundError, match="no weights at"):
        begin(make_vit(), tmp_path / "none")
    save(make_vit(), path)
    other = study.network_for(load_task("digits", train=20), layers=4, width=32, patch=4)
    with pytest.raises(RuntimeError, match=r"size mismatch for units\.0"):
        begin(other, path)


def test_variants_of_the_ablation_are_the_same_training():
    """Those that freeze end alike, whatever else is on; so does never freezing."""
    task = load_task("digits", train=64)
    settings = recipe(3e-3, samples=64, epochs=3, batch=16) | {"workers": 2, "micro": 2}
    states = {}
    for name, options in study.VARIANTS.items():
        network = study.network_for(task, layers=4, width=16, patch=4).double()
        data = Pairs(task.train.x.double(), task.train.y)
        states[name] = train(network, data, settings | options).state
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
