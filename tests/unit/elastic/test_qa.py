"""Questions and answers: windows hold what they should, and scores are those of SQuAD's script."""

import json

import pytest
import torch

from alkit.data.paths import shared_data_dir
from alkit.data.wordpiece import wordpiece
from alkit.elastic import bert_reader
from alkit.elastic.optim import Recipe
from alkit.models.bert import BertSizes
from studies.elastic.questions import (
    Question,
    answers,
    exact_match_and_f1,
    examples,
    made_up,
    read_squad,
    windows,
)
from tests.unit.elastic.helpers import train


@pytest.fixture(scope="module")
def tokenizer():
    lines = [line for q in made_up() for line in (q.context, q.text)]
    return wordpiece(lines, 200)


def test_every_window_holds_its_piece_and_its_answer(tokenizer):
    questions = made_up()
    cut = windows(questions, tokenizer, tokens=20, stride=4, query=8)
    assert len(cut) > len(questions)
    held = set()
    for window in cut:
        question = questions[window.question]
        assert len(window.ids) <= 20
        # the paragraph's pieces begin where `context` says
        text = tokenizer.encode(question.context, add_special_tokens=False)
        start = text.offsets.index(window.offsets[0])
        pieces = text.ids[start : start + len(window.offsets)]
        assert list(window.ids[window.context : -1]) == pieces
        first, last = window.span
        if (first, last) != (0, 0):
            low = window.offsets[first - window.context][0]
            high = window.offsets[last - window.context][1]
            assert question.context[low:high] == question.answers[0][0]
            held.add(window.question)
    assert held == set(range(len(questions)))
    # every piece of a paragraph is in some window
    for number in range(len(questions)):
        seen = {place for w in cut if w.question == number for place in w.offsets}
        assert len(seen) == len(tokenizer.encode(questions[number].context).ids)


def test_segments_and_mask(tokenizer):
    with pytest.raises(ValueError, match="must hold a question"):
        windows(made_up(), tokenizer, tokens=20, stride=16, query=8)
    cut = windows(made_up()[:2], tokenizer, tokens=32, stride=8, query=8)
    data = examples(cut, 32)
    tokens, segments, mask = data.x
    assert mask.sum(1).tolist() == [len(w.ids) for w in cut]
    assert segments[0, : cut[0].context].sum() == 0
    assert segments[0, cut[0].context : len(cut[0].ids)].all()


def test_a_reader_learns_to_answer(tokenizer):
    """Frozen layers, stored windows and a pipeline of two stages on the way."""
    questions = made_up()
    cut = windows(questions, tokenizer, tokens=24, stride=8, query=8)
    sizes = BertSizes(4, 32, 4, 64, tokenizer.get_vocab_size(), 24, dropout=0.0)
    network, data = bert_reader(sizes, seed=1), examples(cut, 24)
    said = answers(network, cut, questions, 24)
    before = exact_match_and_f1(said, questions)
    options = {"freeze": "table", "freeze_options": {"counts": [0, 0, 0, 1]}, "cache_from": 1}
    options |= {"devices": 2, "micro": 2, "epochs": 12, "batch": len(data) // 4}
    found = train(network, data, recipe=Recipe(lr=3e-3), **options)
    assert found.history.hits.sum() > 0
    exact, f1 = exact_match_and_f1(answers(network, cut, questions, 24), questions)
    assert f1 >= exact
    assert exact > before[0] + 30


def test_scores_of_the_official_script():
    questions = [
        Question("a", "", "", (("the Denver Broncos", 0), ("Denver Broncos", 0)), ""),
        Question("b", "", "", (("gold", 0),), ""),
        Question("c", "", "", (("a large red house", 0),), ""),
    ]
    said = {"a": "Denver Broncos!", "b": "silver", "c": "red house"}
    exact, f1 = exact_match_and_f1(said, questions)
    assert exact == pytest.approx(100 / 3)
    assert f1 == pytest.approx(100 * (1 + 0 + 0.8) / 3)


def test_files_of_another_form(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="no file of SQuAD"):
        read_squad(path)
    qa = {"id": 1, "question": "q", "answers": [{"text": "cat", "answer_start": 3}]}
    content = {"data": [{"title": "t", "paragraphs": [{"context": "a cat", "qas": [qa]}]}]}
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="does not stand at character 3"):
        read_squad(path)
    qa["answers"][0]["answer_start"] = 2
    path.write_text(json.dumps(content))
    assert read_squad(path)[0].answers == (("cat", 2),)


@pytest.mark.realdata
def test_the_real_paragraphs():
    found = list((shared_data_dir() / "squad").glob("*.json"))
    if not found:
        pytest.skip("SQuAD's paragraphs are not here")
    questions = read_squad(found[0])
    assert len(questions) == 1190
    assert len({q.article for q in questions}) == 48
    made = wordpiece([q.context for q in questions], 4000)
    cut = windows(questions, made, tokens=128, stride=64, query=32)
    assert {w.question for w in cut} == set(range(1190))
    assert sum(w.span != (0, 0) for w in cut) >= 1180
    torch.testing.assert_close(examples(cut, 128).y[0], torch.tensor(cut[0].span))
