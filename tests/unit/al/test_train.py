"""train_epoch: results that are right, and errors that say what to do."""

import copy

import pytest
import torch
from torch import nn

from alkit import BPModel, to_al, to_bp, train_epoch
from alkit.al.train import full_state
from alkit.models.convnet import convnet
from alkit.models.transformer import transformer
from tests.helpers import CLASSES, WIDTH, dense_model, differences, made_batches, state_of


def _bp_model():
    torch.manual_seed(0)
    return BPModel([nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.Linear(WIDTH, CLASSES)])


def test_bp_equals_a_plain_loop():
    torch.manual_seed(0)
    model = to_bp([nn.Linear(WIDTH, WIDTH), nn.Tanh()], CLASSES, torch.zeros(2, WIDTH))
    torch.manual_seed(0)
    twin = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))
    optimizer = torch.optim.Adam(twin.parameters(), lr=1e-3, fused=True)
    for x, y in made_batches(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(twin(x), y).backward()
        optimizer.step()
    record = train_epoch(model, made_batches(5), "bp")
    assert record.losses.shape == (5, 1, 1)
    assert record.samples == 20
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(own, other)


def test_transformer_with_attention_dropout_same_bits_in_all_modes():
    def model():
        torch.manual_seed(0)
        blocks = transformer(20, blocks=3, width=8, heads=2, ffn=8, dropout=0.3)
        mask = torch.ones(2, 5, dtype=torch.bool)
        return to_al(blocks, CLASSES, (torch.zeros(2, 5, dtype=torch.int64), mask), code_dim=6)

    tokens = torch.randint(1, 20, (4, 5))
    x = (tokens, tokens > 3)
    x[1][:, 0] = True
    batches = [(x, y) for _, y in made_batches(4)]
    states = {}
    for mode, workers in (("al", 1), ("al_m", 3), ("al_fm", None), ("al_pipeline", 3)):
        states[mode] = model()
        train_epoch(states[mode], batches, mode, workers)
    expected = state_of(states.pop("al"))
    assert all(not differences(expected, state_of(other)) for other in states.values())


def test_free_workers_need_no_cut_and_change_no_bit():
    model, twin = dense_model(4), dense_model(4)
    record = train_epoch(model, made_batches(6), "al_pipeline", 2)
    train_epoch(twin, made_batches(6), "al")
    assert record.cuts == ()
    assert len(model.layer_seconds) == 4
    assert {i.batch for i in record.timeline.intervals} == set(range(6))
    assert not differences(state_of(model), state_of(twin))
    assert {i.resource for i in record.timeline.intervals} == {"worker 0", "worker 1"}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_batches(count):
    model = dense_model(3)
    assert len(train_epoch(model, made_batches(count), "al_pipeline", 2).losses) == count


@pytest.mark.parametrize("mode", ["al", "al_fm", "al_pipeline"])
def test_empty_loader(mode):
    with pytest.raises(ValueError, match="the loader is empty"):
        train_epoch(dense_model(2), [], mode)


@pytest.mark.parametrize(
    ("model", "mode", "message"),
    [
        (dense_model(2), "al_mf", "unknown mode 'al_mf' for ALModel: give al, al_m"),
        (dense_model(2), "bp", "unknown mode 'bp' for ALModel"),
        (_bp_model(), "al", "unknown mode 'al' for BPModel: give bp"),
    ],
)
def test_unknown_mode(model, mode, message):
    with pytest.raises(ValueError, match=message):
        train_epoch(model, made_batches(1), mode)


def test_numbers_below_one_and_misplaced_cuts():
    with pytest.raises(ValueError, match="workers is 0"):
        train_epoch(dense_model(2), made_batches(1), workers=0)
    with pytest.raises(ValueError, match="threads is 0"):
        train_epoch(dense_model(2), made_batches(1), threads=0)
    with pytest.raises(ValueError, match="cuts belong to mode al_pipeline"):
        train_epoch(dense_model(2), made_batches(1), "al", cuts=[1])


@pytest.mark.parametrize("mode", ["al", "al_m", "al_fm", "al_pipeline"])
def test_a_loss_that_is_not_finite_names_layer_and_batch(mode):
    model, batches = dense_model(3), made_batches(6)
    broken = model[1].enc.b[1]
    broken.register_forward_hook(lambda m, i, o: o * float("nan") if m.calls() == 4 else o)
    calls = iter(range(1, 100))
    broken.calls = lambda: next(calls)
    with pytest.raises(FloatingPointError, match="associated loss of layer 1 is nan at batch 3"):
        train_epoch(model, batches, mode)


def test_bad_width_in_a_worker_is_named_with_layer_and_batch():
    batches = [*made_batches(2), (torch.zeros(4, WIDTH + 1), made_batches(1)[0][1])]
    with pytest.raises(ValueError, match=r"f does not take an input of shape \(4, 7\)") as caught:
        train_epoch(dense_model(2), batches, "al_pipeline", 2, cuts=[1])
    assert "forward of stage 0, batch 2" in caught.value.__notes__[0]


@pytest.mark.parametrize("model", [dense_model(2), _bp_model()])
def test_full_state_is_all_that_training_changes(model):
    """A copy that is given the full state's values trains on in the same bits."""
    mode = "bp" if isinstance(model, BPModel) else "al"
    train_epoch(model, made_batches(3), mode)
    state, parameters = full_state(model), len(list(model.parameters()))
    names = {name.rsplit(".", 1)[1] for name in state.keys() - model.state_dict().keys()}
    assert names == {"step", "exp_avg", "exp_avg_sq"}
    assert len(state) == len(model.state_dict()) + 3 * parameters
    twin = dense_model(2, seed=1) if mode == "al" else _bp_model()
    train_epoch(twin, made_batches(1, seed=2), mode)
    assert differences(state_of(model), state_of(twin))
    for name, value in full_state(twin).items():
        value.copy_(state[name])
    for each in (model, twin):
        train_epoch(each, made_batches(3, seed=1), mode)
    assert not differences(state_of(model), state_of(twin))


def test_to_al_and_to_bp_find_shapes_and_change_no_buffer():
    blocks = convnet(widths=(4, 8))
    before = blocks[0][1].running_mean.clone()
    model = to_al(blocks, 10, torch.randn(2, 1, 8, 8), recipe="mse", code_dim=7)
    assert torch.equal(before, blocks[0][1].running_mean)
    assert [layer.enc.b.body[0].in_features for layer in model] == [16, 32]
    assert model.predict(torch.randn(3, 1, 8, 8)).shape == (3, 10)
    twin = to_bp(copy.deepcopy(blocks), 10, torch.randn(2, 1, 8, 8))
    assert twin.predict(torch.randn(3, 1, 8, 8)).shape == (3, 10)
    assert len(twin) == 3


def test_to_al_errors():
    sample = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="no blocks"):
        to_al([], 2, sample)
    with pytest.raises(TypeError, match="block 0 must be a module"):
        to_al([torch.relu], 2, sample)
    with pytest.raises(ValueError, match="wanted .B, D."):
        to_al([nn.Identity()], 2, sample, pool=lambda s: s[None])
    with pytest.raises(ValueError, match="give pool="):
        to_al([nn.Identity()], 2, torch.zeros(1, 2, 3, 4, 5))
    with pytest.raises(ValueError, match="not a multiple"):
        transformer(10, width=10, heads=3)


def test_pooling_ignores_padding():
    blocks = transformer(20, blocks=2, width=8, heads=2, ffn=8, dropout=0.0)
    short = torch.tensor([[5, 6, 7]])
    long = torch.tensor([[5, 6, 7, 0, 0]])
    model = to_al(blocks, CLASSES, (short, short > 0), code_dim=6)
    for depth in (1, 2, 3):
        torch.testing.assert_close(
            model.predict((short, short > 0), depth), model.predict((long, long > 0), depth)
        )
