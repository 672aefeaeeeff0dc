"""Documents, WordPiece and masked pairs: what is hidden, what follows, and what depends on what."""

import pytest
import torch

from alkit.data.prose import load_prose, read_text
from alkit.data.wordpiece import CLS, MASK, SEP, SPECIAL, load_wordpiece, wordpiece
from studies.elastic.masking import MaskedPairs

TOKENS = 24


@pytest.fixture(scope="module")
def documents():
    """Made-up text: two documents that share no word but the little ones."""
    sea = [f"the {a} of the sea is {b} ." for a in ("wave", "salt", "fish") for b in ("wet", "old")]
    sky = [
        f"the {a} of the sky is {b} ." for a in ("cloud", "star", "moon") for b in ("far", "dim")
    ]
    return [sea * 3, sky * 3]


@pytest.fixture(scope="module")
def tokenizer(documents):
    return wordpiece((s for d in documents for s in d), 80)


@pytest.fixture(scope="module")
def pairs(documents, tokenizer):
    return MaskedPairs(documents, tokenizer, TOKENS)


def test_pieces_are_of_the_corpus_and_numbered_by_the_alphabet(tokenizer, tmp_path, documents):
    assert [tokenizer.id_to_token(n) for n in range(5)] == list(SPECIAL)
    assert tokenizer.encode("the wave").tokens == ["the", "wave"]
    assert tokenizer.get_vocab_size() <= 80
    tokenizer.save(str(tmp_path / "pieces.json"))
    again = load_wordpiece(tmp_path / "pieces.json")
    assert again.encode("old moon").ids == tokenizer.encode("old moon").ids
    with pytest.raises(ValueError, match="give more"):
        wordpiece(["the quick brown fox"], 8)
    # However the library numbers them: the same pieces are the same numbers in every run.
    made = wordpiece((s for d in documents for s in d), 80)
    pieces = [made.id_to_token(number) for number in range(5, made.get_vocab_size())]
    assert pieces == sorted(pieces)
    assert made.encode("a wave [MASK]").ids[-1] == MASK
    assert made.decode(made.encode("the old moon").ids) == "the old moon"


def test_an_example_is_two_texts_between_marks(pairs):
    made = pairs.epoch(0)
    assert (made.tokens_NT[:, 0] == CLS).all()
    shown = torch.where(made.mask_NT, made.tokens_NT, 0)
    assert ((shown == SEP).sum(1) == 2).all()
    assert (made.segments_NT[~made.mask_NT] == 0).all()
    first_of_second = (made.segments_NT == 1).int().argmax(1)
    before = made.tokens_NT.gather(1, first_of_second[:, None] - 1)
    assert (before == SEP).all()


def test_hidden_words_can_be_put_back(pairs, documents, tokenizer):
    """With them, texts are of a document again: of the same one if the second follows."""
    made = pairs.epoch(0)
    texts = [" ".join(document) for document in documents]
    for tokens, segments, mask, places, words, follows in zip(*made[:6], strict=True):
        told = words != -100
        whole = tokens.clone()
        whole[places[told]] = words[told]
        first, second = (
            tokenizer.decode([n for n in whole[(segments == at) & mask].tolist() if n > MASK])
            for at in (0, 1)
        )
        assert any(first in text for text in texts)
        places = [{word for word in ("sea", "sky") if word in each} for each in (first, second)]
        assert len(set.union(*places)) < 2 or not follows
        assert not set.intersection(*places) or follows


def test_much_is_hidden_by_seed_and_epoch_alone(documents, tokenizer):
    many = MaskedPairs(documents * 40, tokenizer, TOKENS).epoch(0)
    told = many.words_NM != -100
    hidden = told.sum().item() / (many.mask_NT.sum().item() - 3 * len(many.mask_NT))
    assert 0.11 < hidden < 0.17
    shown = many.tokens_NT.gather(1, many.places_NM)[told]
    assert 0.7 < (shown == MASK).float().mean() < 0.9
    assert 0.05 < (shown == many.words_NM[told]).float().mean() < 0.2
    assert 0.4 < many.is_next_N.float().mean() < 0.6
    one = list(MaskedPairs(documents, tokenizer, TOKENS).batches(4, 1))
    again = list(MaskedPairs(documents, tokenizer, TOKENS).batches(4, 1))
    for (x, y), (other_x, other_y) in zip(one, again, strict=True):
        pairs = zip((*x, *y), (*other_x, *other_y), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    later = next(MaskedPairs(documents, tokenizer, TOKENS).batches(4, 2))
    assert not torch.equal(one[0][0][0], later[0][0])


def test_files_and_embedded_text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("One.\nTwo.\n\n\nThree.\n")
    assert read_text(path) == [["One.", "Two."], ["Three."]]
    assert load_prose(str(path), "test") == [["Three."]]
    assert len(load_prose("pydocs")) > 100


@pytest.mark.realdata
def test_wikitext_is_cut_into_articles():
    try:
        documents = load_prose("wikitext", "valid")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert len(documents) == 60
    assert documents[0][0].startswith("Homarus gammarus , known as the European lobster")
    assert sum(map(len, documents)) > 5_000


def test_labels_are_those_of_the_documents(documents, tokenizer):
    classes = list(range(len(documents)))
    made = MaskedPairs(documents, tokenizer, TOKENS, pairs=False, labels=classes)
    plain = MaskedPairs(documents, tokenizer, TOKENS, pairs=False)
    own, other = made.epoch(0), plain.epoch(0)
    assert all(torch.equal(a, b) for a, b in zip(own[:-1], other[:-1], strict=True))
    assert not other.is_next_N.any()
    for row, label in enumerate(own.is_next_N.tolist()):
        ids, words = own.tokens_NT[row].clone(), own.words_NM[row]
        ids[own.places_NM[row][words >= 0]] = words[words >= 0]
        shown = tokenizer.decode(ids.tolist()).split()
        assert ("sea" in shown, "sky" in shown) == (label == 0, label == 1)


def test_bad_requests(documents, tokenizer, tmp_path):
    with pytest.raises(ValueError, match="give one each, and pairs=False"):
        MaskedPairs(documents, tokenizer, TOKENS, pairs=True, labels=[0] * len(documents))
    with pytest.raises(ValueError, match="do not fill a batch of 999"):
        next(MaskedPairs(documents, tokenizer, TOKENS).batches(999))
    with pytest.raises(ValueError, match="give train, valid or test"):
        load_prose("pydocs", "dev")
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="holds no sentence"):
        read_text(tmp_path / "empty.txt")
