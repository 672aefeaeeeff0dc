"""alkit.save and alkit.load: the same scores from the same network elsewhere; else a refusal."""

import pytest
import torch
from torch import nn

import alkit
from alkit.al.bridges import flat
from tests.unit.front.test_one_face import WIDTH, C, blocks, options, tensors

X = torch.randn(5, WIDTH)


def trained(method, path, model=None, **more):
    torch.manual_seed(1)
    given = blocks() if model is None else model
    record = alkit.fit(given, tensors(), tensors(32, 1), tensors(8, 2), **options(method), **more)
    alkit.save(record, path)
    return record


def test_a_methods_own_model_options_and_cuts_come_back(tmp_path):
    sample = torch.zeros(2, WIDTH)
    own = trained("al", tmp_path / "a", alkit.to_al(blocks(), C, sample, code_dim=16))
    again = alkit.load(tmp_path / "a", alkit.to_al(blocks(), C, sample, code_dim=16))
    assert torch.equal(again.predict(X), own.predict(X))
    record = trained("al", tmp_path / "b", code_dim=16, recipe="mse")
    assert torch.equal(alkit.load(tmp_path / "b", blocks()).predict(X), record.predict(X))
    record = trained("pipedream", tmp_path / "net", cuts=[1, 2])
    loaded = alkit.load(tmp_path / "net", blocks())
    assert loaded.cuts == (1, 2)
    assert torch.equal(loaded.predict(X), record.predict(X))
    assert alkit.evaluate(loaded, tensors(8, 2)).mean() == pytest.approx(record.test_acc)


def test_what_a_file_does_not_keep_and_another_network_are_said(tmp_path):
    trained("al", tmp_path / "net", pool=flat)
    with pytest.raises(ValueError, match="with a function or module as a setting"):
        alkit.load(tmp_path / "net", blocks())
    alkit.load(tmp_path / "net", alkit.to_al(blocks(), C, torch.zeros(2, WIDTH), pool=flat))
    trained("bp", tmp_path / "net")
    other = nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, C))
    before = [each.clone() for each in other.parameters()]
    with pytest.raises(ValueError, match="holds another network: blocks.0"):
        alkit.load(tmp_path / "net", other)
    assert all(map(torch.equal, before, other.parameters()))


def test_a_checkpoint_or_a_damaged_file_is_no_model(tmp_path):
    alkit.fit(blocks(), tensors(), method="bp", checkpoint=tmp_path / "run", progress=False)
    with pytest.raises(ValueError, match="no model that alkit.save wrote"):
        alkit.load(tmp_path / "run", blocks())
    trained("bp", tmp_path / "net")
    whole = (tmp_path / "net").read_bytes()
    (tmp_path / "net").write_bytes(whole[:-200])
    with pytest.raises(ValueError, match="damaged"):
        alkit.load(tmp_path / "net", blocks())


def test_soft_labels_bring_their_recipe(tmp_path):
    x, y = tensors()
    soft = nn.functional.one_hot(y, C) * 0.7 + 0.1
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    record = alkit.fit(blocks(), (x, soft), method="al", loss=loss, progress=False)
    alkit.save(record, tmp_path / "net")
    loaded = alkit.load(tmp_path / "net", blocks())
    assert torch.equal(loaded.predict(X), record.predict(X))


# ---- files of others


def changed(path, **made):
    """Write a file like another, in which something else is said of how its model was made."""
    state = torch.load(path, weights_only=True)
    state["state"]["made"] |= made
    torch.save(state, path)
    return path


LARGE = torch.zeros(1).expand(10**10)
NOT_MADE = [
    ({"num_classes": 10**10}, "num_classes is 10000000000, and its layers have .* rows"),
    ({"num_classes": -1}, "num_classes is -1"),
    ({"changes": {"code_dim": 10**10}}, "code_dim is 10000000000, and its layers"),
    ({"sample": [LARGE[None], LARGE]}, r"a tensor torch.float32 of \(1, 10000000000\)"),
]


@pytest.mark.parametrize(("made", "words"), NOT_MADE, ids=[words for _, words in NOT_MADE])
def test_what_asks_for_more_than_a_file_holds_is_not_made(tmp_path, made, words):
    trained("al", tmp_path / "net")
    with pytest.raises(ValueError, match=f"net is damaged or not what alkit.save wrote: {words}"):
        alkit.load(changed(tmp_path / "net", **made), blocks())
