"""A WordPiece vocabulary made from a corpus, by the `tokenizers` library."""

from collections.abc import Iterable
from pathlib import Path

from alkit.data.extras import extra

with extra("text", "a WordPiece vocabulary"):
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNKNOWN, CLS, SEP, MASK = range(len(SPECIAL))


def wordpiece(sentences: Iterable[str], size: int) -> Tokenizer:
    """Return a tokenizer with at most `size` pieces, the special ones first.

    Words are lowered and freed of accents, as in BERT's uncased vocabulary.

    The library numbers pieces in another order each time, and where counts are equal it may choose
    other ones. So they are numbered by the alphabet here; keep the tokenizer with what was trained
    on it all the same.

    Raises:
        ValueError: room for fewer pieces than there are letters.
    """
    made = Tokenizer(models.WordPiece(unk_token=SPECIAL[UNKNOWN]))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=list(SPECIAL), limit_alphabet=200, show_progress=False
    )
    made.train_from_iterator(sentences, trainer)
    if made.get_vocab_size() > size:
        raise ValueError(
            f"size is {size} and the letters alone are {made.get_vocab_size()}: give more"
        )
    pieces = [*SPECIAL, *sorted(set(made.get_vocab()) - set(SPECIAL))]
    numbers = {piece: number for number, piece in enumerate(pieces)}
    made.model = models.WordPiece(numbers, unk_token=SPECIAL[UNKNOWN])
    return made


def load_wordpiece(path: str | Path) -> Tokenizer:
    """Return a tokenizer that was saved with `tokenizer.save(path)`; it is JSON, not code."""
    return Tokenizer.from_file(str(path))
