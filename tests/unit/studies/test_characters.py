"""The character model sees the past alone, its data is what it says, and its tables are right."""

import math
from functools import partial
from itertools import islice

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from alkit.delayed import Pipeline, train_epoch
from studies.common.study import TUNING_SEED
from studies.delayed import characters
from studies.delayed import characters_study as study
from studies.delayed.corrections import GapAware, PipeMare, Predict
from studies.delayed.rates import linear

TINY = characters.Sizes(layers=3, width=8, heads=2, context=6, dropout=0.2)
TEXT = "abcab bca cab. " * 40


def _ids():
    alphabet = characters.Alphabet(TEXT)
    return alphabet, alphabet.encode(TEXT)


def test_a_place_sees_the_past_and_weights_depend_on_the_seed_alone():
    units = characters.character_model(TINY, 7)
    model = torch.nn.Sequential(*units).eval()
    ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
    other = ids.clone()
    other[0, 3] = 1
    one, two = model(ids), model(other)
    torch.testing.assert_close(one[:, :3], two[:, :3])
    assert (one[:, 3:] != two[:, 3:]).any(2).all()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one = characters.character_model(TINY, 7, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    again, other = (characters.character_model(TINY, 7, seed=seed) for seed in (1, 2))
    assert torch.equal(one[1].linear1.weight, again[1].linear1.weight)
    assert not torch.equal(one[1].linear1.weight, other[1].linear1.weight)


def test_a_batch_asks_for_the_next_character():
    alphabet, ids = _ids()
    named = {number: each for each, number in alphabet.numbers.items()}
    for x, y in characters.batches(ids, size=4, context=6, steps=3, seed=0):
        assert x.shape == y.shape == (4, 6)
        assert torch.equal(x[:, 1:], y[:, :-1])
        for row in torch.cat([x, y[:, -1:]], dim=1).tolist():
            assert "".join(named[each] for each in row) in TEXT
    with pytest.raises(ValueError, match="give more than 700, a window"):
        next(characters.batches(ids, size=4, context=700, steps=3, seed=0))


def test_rare_characters_are_one_and_unigrams_are_those_by_hand():
    alphabet = characters.Alphabet("aaabbbc", least=3)
    assert alphabet.encode("abcz").tolist() == [1, 2, 0, 0]
    assert len(alphabet) == 3
    train, other = torch.tensor([1, 1, 2]), torch.tensor([1, 2, 0])
    expected = -(math.log(3 / 6) + math.log(2 / 6) + math.log(1 / 6)) / 3
    assert characters.unigram_loss(train, other, 3) == pytest.approx(expected)


@pytest.mark.parametrize("modules", [3, 5])
def test_replayed_noise_is_that_of_the_forward_in_attention_too(modules):
    """Within one batch nothing is stale: FR's loss and its first step are those of backprop."""
    alphabet, ids = _ids()

    def trained(method, cuts, **settings):
        units = characters.character_model(TINY, len(alphabet))
        made = Pipeline(units, characters.next_loss, cuts, lambda p: torch.optim.SGD(p, lr=0.1))
        windows = list(characters.batches(ids, size=4, context=6, steps=1, seed=0))
        losses = train_epoch(made, windows, method, **settings).losses
        return losses, list(made.parameters())

    cuts = study.cuts_of(modules, 3)
    one, other = trained("seq", []), trained("fr", cuts)
    assert torch.equal(one[0], other[0])
    assert all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True))
    new = trained("fr", cuts, replay_noise=False)
    assert not all(torch.equal(a, b) for a, b in zip(one[1], new[1], strict=True))


def test_an_articles_loss_is_the_mean_over_its_whole_windows():
    alphabet, ids = _ids()
    model = torch.nn.Sequential(*characters.character_model(TINY, len(alphabet)))
    articles = [ids[:20], ids[5:9], ids[3:16]]  # 19 next characters, 3, 12
    found = characters.article_losses(model, articles, context=6, batch_size=2)
    model.eval()
    for value, article in zip(found, (ids[:19], ids[3:16]), strict=True):
        parts = [article[at : at + 7] for at in range(0, len(article) - 1, 6)]
        losses = [F.cross_entropy(model(p[None, :-1])[0], p[1:]).item() for p in parts]
        assert value == pytest.approx(np.mean(losses), rel=1e-5)


def test_a_run_leaves_the_test_articles_closed_for_the_tuning_seed():
    alphabet, ids = _ids()
    text = study.Text(alphabet, ids, [ids[:50]], [ids[50:150]])
    settings = {"sizes": TINY, "steps": 8, "batch_size": 4, "micro": 4}
    for method, seed in (("2bw", TUNING_SEED), ("fr, new noise", 0)):
        case = study.Case(method, 3, 0.1, seed, 1e-3)
        losses, validation, test = study.run(case, text, **settings)
        assert len(losses) == 8
        assert len(validation) == 1
        assert (test is None) == (seed == TUNING_SEED)
    again, *_ = study.run(case, text, **settings)
    assert list(islice(again, 8)) == list(islice(losses, 8))


def test_a_correction_has_its_name_in_the_records():
    """By its name in the records; without delay NAdam is one module's."""
    alphabet, ids = _ids()
    text = study.Text(alphabet, ids, [ids], [ids])
    sized = {"sizes": TINY, "steps": 8, "batch_size": 4, "micro": 5}

    def losses(method, modules=5):
        return study.run(study.Case(method, modules, 0.2, 0, 1e-2), text, **sized)[0]

    def direct(method, optimizer=torch.optim.AdamW, cuts=(1, 2, 3, 4), **own):
        units = characters.character_model(TINY, len(alphabet))
        made = partial(optimizer, lr=1e-2, weight_decay=0.01)
        pipeline = Pipeline(units, characters.next_loss, list(cuts), made)
        windows = characters.batches(ids, size=4, context=6, steps=8, seed=0)
        return train_epoch(pipeline, windows, method, clip=1.0, rate=linear(8), **own).losses

    made = {"predict": Predict(), "gap_aware": GapAware(), "pipemare": PipeMare(warmup=2)}
    found = {name: losses(name) for name, _ in study.CORRECTED[:3]}
    for name, own in found.items():
        correction = name.split(", ")[1]
        where = "pipedream_inplace" if correction == "pipemare" else "pipedream"
        assert torch.equal(own, direct(where, correction=made[correction]))
    plain = losses("pipedream")
    assert not any(torch.equal(own, plain) for own in found.values())
    settings = {"betas": (0.99, 0.999), "momentum_decay": 0.004, "decoupled_weight_decay": True}
    own = partial(torch.optim.NAdam, **settings)
    assert torch.equal(losses("pipedream, nadam"), direct("pipedream", own))
    assert torch.equal(losses("seq, nadam", 1), direct("seq", own, ()))


def test_what_a_correction_gives_back_is_paired_by_seed():
    values = {"seq": 2.0, "pipedream": 2.2, "pipedream, predict": 2.15, "seq, nadam": 1.9,
              "pipedream, nadam": 2.0}  # fmt: skip
    rows = [
        {"metric": "loss", "seed": seed, "method": name, "value": value + seed, "dropout": 0.1,
         "modules": 1 if name.startswith("seq") else 5}
        for seed in (0, 1)
        for name, value in values.items()
    ]  # fmt: skip
    table = study.recovered(pd.DataFrame(rows)).set_index("method")
    assert table["given back, mean"].to_dict() == pytest.approx(
        {"pipedream, predict": 0.25, "pipedream, nadam": 0.5}
    )
    assert (table.n == 2).all()
