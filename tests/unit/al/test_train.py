"""train_epoch and to_al: results that are right, and errors that say what to do."""

import copy

import pytest
import torch
from torch import nn

from alkit import to_al, to_bp, train_epoch
from alkit.engine.losses import check_finite
from studies.al.networks import transformer
from tests.helpers import (
    CLASSES,
    WIDTH,
    dense_model,
    differences,
    full_state,
    made_batches,
    state_of,
)
from tests.make import bp_model
from tests.unit.al.helpers import convnet


def test_bp_equals_a_plain_loop():
    torch.manual_seed(0)
    model = to_bp([nn.Linear(WIDTH, WIDTH), nn.Tanh()], CLASSES, torch.zeros(2, WIDTH))
    twin = copy.deepcopy(nn.Sequential(*model))
    optimizer = torch.optim.Adam(twin.parameters(), lr=1e-3, fused=True)
    for x, y in made_batches(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(twin(x), y).backward()
        optimizer.step()
    record = train_epoch(model, made_batches(5), "bp")
    assert record.losses.shape == (5, 1, 1)
    assert record.samples == 20
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


def test_transformer_with_attention_dropout_same_bits_in_all_modes():
    tokens = torch.randint(1, 20, (4, 5))
    x, states = (tokens, tokens > 3), []
    x[1][:, 0] = True
    for mode, workers in (("al", 1), ("al_m", 3), ("al_fm", None), ("al_pipeline", 3)):
        torch.manual_seed(0)
        blocks = transformer(20, blocks=3, width=8, heads=2, ffn=8, dropout=0.3)
        model = to_al(blocks, CLASSES, x, code_dim=6)
        train_epoch(model, [(x, y) for _, y in made_batches(4)], mode, workers)
        states.append(state_of(model))
    assert not any(differences(states[0], other) for other in states[1:])


@pytest.mark.parametrize("mode", ["al", "al_m", "al_fm", "al_pipeline"])
def test_a_loss_that_is_not_finite_names_batch_and_layer(mode):
    model, calls = dense_model(3), iter(range(1, 100))
    broken = model[1].enc.b[1]
    broken.register_forward_hook(lambda m, i, o: o * float("nan") if next(calls) == 4 else o)
    with pytest.raises(FloatingPointError, match=r"nan at batch 3 of the epoch.* \[1, 0\]"):
        check_finite(train_epoch(model, made_batches(6), mode).losses)


@pytest.mark.parametrize(("mode", "make"), [("al", lambda seed=0: dense_model(2, seed)),
                                            ("bp", bp_model)])  # fmt: skip
def test_full_state_is_all_that_training_changes(mode, make):
    """A copy that is given the full state's values trains on in the same bits."""
    model, twin = make(), make(seed=1)
    train_epoch(model, made_batches(3), mode)
    state, parameters = full_state(model), len(list(model.parameters()))
    names = {name.rsplit(".", 1)[1] for name in state.keys() - model.state_dict().keys()}
    assert names == {"step", "exp_avg", "exp_avg_sq"}
    assert len(state) == len(model.state_dict()) + 3 * parameters
    train_epoch(twin, made_batches(1, seed=2), mode)
    assert differences(state_of(model), state_of(twin))
    for name, value in full_state(twin).items():
        value.copy_(state[name])
    for each in (model, twin):
        train_epoch(each, made_batches(3, seed=1), mode)
    assert not differences(state_of(model), state_of(twin))


def test_to_al_and_to_bp_find_shapes_and_change_no_buffer():
    blocks, x = convnet(widths=(4, 8)), torch.randn(2, 1, 8, 8)
    before = blocks[0][1].running_mean.clone()
    model = to_al(blocks, 10, x, recipe="mse", code_dim=7)
    assert torch.equal(before, blocks[0][1].running_mean)
    assert [layer.enc.b.body[0].in_features for layer in model] == [16, 32]
    twin = to_bp(copy.deepcopy(blocks), 10, x)
    assert model.predict(x).shape == twin.predict(x).shape == (2, 10)
    assert len(twin) == 3


@pytest.mark.parametrize(("channels", "width"), [(8, 64), (100, 100), (300, 128)])
def test_a_bridge_is_not_narrow_where_blocks_are_nor_wider_than_its_code(channels, width):
    sample = torch.zeros(2, 3, 16, 16)
    model = to_al([nn.Conv2d(3, channels, 1)], num_classes=5, sample=sample, code_dim=128)
    widths = {m.out_channels for m in model[0].enc.b.modules() if isinstance(m, nn.Conv2d)}
    assert widths == {width}
    assert model[0].enc.b(torch.zeros(2, channels, 16, 16)).shape == (2, 128)
